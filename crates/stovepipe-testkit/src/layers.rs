//! Layers with what can go wrong at a boundary: inputs that are used several times, views, tuples
//! with parts that get no gradient, skip connections.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use stovepipe::burn::tensor::activation::{gelu, softmax};
use stovepipe::burn::tensor::{Device, Int, Tensor};
use stovepipe::prelude::*;

use crate::values::{CLASSES, DIM, Tokens};

/// Initializes a linear layer with a bias.
pub(crate) fn linear(from: usize, to: usize) -> impl Fn(&Device) -> Linear + Send + Sync + 'static {
    move |device| LinearConfig::new(from, to).init(device)
}

/// Turns token ids into vectors.
#[derive(Module, Debug)]
pub struct Embed {
    embedding: Embedding,
}

impl Embed {
    /// Random vectors of width [`DIM`].
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { embedding: EmbeddingConfig::new(CLASSES, DIM).init(device) }
    }
}

impl Layer for Embed {
    type Input = Tokens;
    type Output = Tensor<3>;

    fn forward(&self, ids: Tokens, _: &mut LayerContext<'_>) -> Tensor<3> {
        self.embedding.forward(ids)
    }
}

/// Uses its input four times: as query, key, value and residual.
#[derive(Module, Debug)]
pub struct Attention {
    norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
}

impl Attention {
    /// One head of width [`DIM`].
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(DIM).init(device),
            query: linear(DIM, DIM)(device),
            key: linear(DIM, DIM)(device),
            value: linear(DIM, DIM)(device),
        }
    }
}

impl Layer for Attention {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        let query = self.query.forward(self.norm.forward(x.clone()));
        let key = self.key.forward(x.clone());
        let value = self.value.forward(x.clone());
        // A view leaves the layer: swapped twice on the way.
        let scores = softmax(query.matmul(key.swap_dims(1, 2)), 2);
        (x + scores.matmul(value)).swap_dims(1, 2).swap_dims(1, 2)
    }
}

/// Makes two tensors of one, and a third of integers; [`Join`] uses only the first.
#[derive(Module, Debug)]
pub struct Fork {
    left: Linear,
    right: Linear,
}

impl Fork {
    /// Both of width [`DIM`].
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { left: linear(DIM, DIM)(device), right: linear(DIM, DIM)(device) }
    }
}

impl Layer for Fork {
    type Input = Tensor<3>;
    type Output = (Tensor<3>, (Tensor<3>, Tensor<2, Int>));

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Self::Output {
        let [batch, seq, _] = x.dims();
        let ones = Tensor::<2, Int>::ones([batch, seq], &x.device());
        (self.left.forward(x.clone()), (self.right.forward(x), ones))
    }
}

/// Uses the first output of [`Fork`] and ignores the others.
#[derive(Module, Debug)]
pub struct Join {
    out: Linear,
}

impl Join {
    /// Of width [`DIM`].
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { out: linear(DIM, DIM)(device) }
    }
}

impl Layer for Join {
    type Input = (Tensor<3>, (Tensor<3>, Tensor<2, Int>));
    type Output = Tensor<3>;

    fn forward(&self, (left, _): Self::Input, _: &mut LayerContext<'_>) -> Tensor<3> {
        self.out.forward(left)
    }
}

/// Keeps what comes in for the layer at the same level on the way up: a tuple with a view in it, of
/// which one part gets no gradient.
#[derive(Module, Debug)]
pub struct Down {
    linear: Linear,
    #[module(skip)]
    level: String,
    #[module(skip)]
    dropout: Option<f64>,
}

impl Down {
    /// Stashes under the name of this level.
    pub fn at(level: &str) -> impl Fn(&Device) -> Self + Send + Sync + 'static {
        let level = level.to_owned();
        move |device| Self { linear: linear(DIM, DIM)(device), level: level.clone(), dropout: None }
    }

    /// The same, with dropout at the end.
    pub fn dropping(
        level: &str,
        probability: f64,
    ) -> impl Fn(&Device) -> Self + Send + Sync + 'static {
        let plain = Self::at(level);
        move |device| Self { dropout: Some(probability), ..plain(device) }
    }
}

impl Layer for Down {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let [batch, ..] = x.dims();
        let unused = Tensor::<1>::ones([batch], &x.device());
        context.stash(&self.level, (x.clone().swap_dims(1, 2), unused));
        let y = gelu(self.linear.forward(x));
        match self.dropout {
            Some(probability) => context.dropout(y, probability),
            None => y,
        }
    }

    fn stashes(&self) -> Vec<String> {
        vec![self.level.clone()]
    }
}

/// Adds what the [`Down`] of the same level kept.
#[derive(Module, Debug)]
pub struct Up {
    linear: Linear,
    #[module(skip)]
    level: String,
    #[module(skip)]
    declared: bool,
}

impl Up {
    /// Pops the name of this level.
    pub fn at(level: &str) -> impl Fn(&Device) -> Self + Send + Sync + 'static {
        let level = level.to_owned();
        move |device| Self {
            linear: linear(DIM, DIM)(device),
            level: level.clone(),
            declared: true,
        }
    }

    /// The same, but it doesn't declare that it pops.
    pub fn undeclared(level: &str) -> impl Fn(&Device) -> Self + Send + Sync + 'static {
        let declared = Self::at(level);
        move |device| Self { declared: false, ..declared(device) }
    }
}

impl Layer for Up {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let (kept, _): (Tensor<3>, Tensor<1>) = context.pop(&self.level);
        self.linear.forward(x) + kept.swap_dims(1, 2)
    }

    fn pops(&self) -> Vec<String> {
        if self.declared { vec![self.level.clone()] } else { Vec::new() }
    }
}
