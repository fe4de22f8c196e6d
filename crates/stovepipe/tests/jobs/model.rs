//! A small model with everything that crosses ranks: token ids, skips that span stages, dropout, a tied
//! parameter, batch normalization and a boundary part that gets no gradient.

use stovepipe::Flex;
use stovepipe::burn;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{EmbeddingConfig, Linear, LinearConfig};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, Int, Tensor, TensorData};
use stovepipe::{
    Accuracy, BatchNorm, Builder, Clipping, CrossEntropy, Layer, LayerContext, LayerCosts,
    Pipeline, Sequential,
};

pub(crate) const DIM: usize = 8;
pub(crate) const SEQ: usize = 5;
pub(crate) const CLASSES: usize = 11;

pub(crate) type Tokens = Tensor<2, Int>;
pub(crate) type Toy = Pipeline<Tokens, Tensor<3>, Tokens>;

/// Keeps what comes in for the layer at the same level on the way up.
#[derive(Module, Debug)]
struct Down {
    linear: Linear,
    #[module(skip)]
    level: String,
}

impl Layer for Down {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let [batch, ..] = x.dims();
        let unused = Tensor::<1>::ones([batch], &x.device());
        context.stash(&self.level, (x.clone(), unused));
        context.dropout(gelu(self.linear.forward(x)), 0.2)
    }

    fn stashes(&self) -> Vec<String> {
        vec![self.level.clone()]
    }
}

/// Adds what was kept.
#[derive(Module, Debug)]
struct Up {
    linear: Linear,
    #[module(skip)]
    level: String,
}

impl Layer for Up {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let (kept, _): (Tensor<3>, Tensor<1>) = context.pop(&self.level);
        self.linear.forward(x) + kept
    }

    fn pops(&self) -> Vec<String> {
        vec![self.level.clone()]
    }
}

/// Its running statistics are those of mini-batches.
#[derive(Module, Debug)]
struct Normalize {
    norm: BatchNorm,
}

impl Layer for Normalize {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        self.norm.forward(x, context)
    }
}

/// Eleven layers; `fault` is one of them, and the last of the second of three stages.
pub(crate) fn model(
    fault: impl Fn(Tensor<3>, &mut LayerContext<'_>) -> Tensor<3> + Send + Sync + 'static,
) -> Sequential<Tokens, Tensor<3>> {
    let linear = |device: &Device| LinearConfig::new(DIM, DIM).init(device);
    let down = |level: &str| {
        let level = level.to_owned();
        move |device: &Device| Down { linear: linear(device), level: level.clone() }
    };
    let up = |level: &str| {
        let level = level.to_owned();
        move |device: &Device| Up { linear: linear(device), level: level.clone() }
    };
    Sequential::<Tokens>::new()
        .push_module("embed", |d| EmbeddingConfig::new(CLASSES, DIM).init(d), |m, x| m.forward(x))
        .push("down.0", down("0"))
        .push("down.1", down("1"))
        .push("down.2", down("2"))
        .push("normalize", |d| Normalize { norm: BatchNorm::new(SEQ, d) })
        .push("up.2", up("2"))
        .push_fn_with_context("fault", fault)
        .push("up.1", up("1"))
        .push("up.0", up("0"))
        .push_fn("gelu", |x: Tensor<3>| gelu(x))
        .push_module(
            "head",
            |d| LinearConfig::new(DIM, CLASSES).init(d),
            |m, x: Tensor<3>| m.forward(x),
        )
        .tie(["down.0.linear.weight", "up.0.linear.weight"])
}

/// What all tests have in common.
pub(crate) fn builder(model: Sequential<Tokens, Tensor<3>>) -> Builder<Tokens, Tensor<3>, Tokens> {
    Pipeline::builder(model)
        .backend(Flex::new())
        .layer_costs(LayerCosts::Uniform)
        .micro_batches(4)
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-2)
        .loss(CrossEntropy)
        .metric("accuracy", Accuracy)
        .clip_gradients(Clipping::Norm(0.5))
        .seed(7)
}

/// Token ids and targets, different for each `step`.
pub(crate) fn batch(samples: usize, step: usize) -> (Tokens, Tokens) {
    let tensor = |factor: usize| {
        let ids = (0..samples * SEQ).map(|i| ((i * factor + step * 3 + i / 7) % CLASSES) as i32);
        let data = TensorData::new(ids.collect::<Vec<i32>>(), [samples, SEQ]);
        Tensor::from_data(data, &Device::flex())
    };
    (tensor(5), tensor(3))
}
