//! The model that is measured: pre-norm Transformer blocks on floats, mean squared error, plain
//! SGD.

use clap::Args;
use serde::Serialize;
use stovepipe::Builder;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::activation::{gelu, softmax};
use stovepipe::burn::tensor::{Device, Distribution, Tensor};
use stovepipe::prelude::*;

/// A pipeline of the [`Model`].
pub type BenchPipeline = Pipeline<Tensor<3>, Tensor<3>, Tensor<3>>;
/// The builder of a [`BenchPipeline`].
pub type BenchBuilder = Builder<Tensor<3>, Tensor<3>, Tensor<3>>;

/// Sizes of the model and of its batch.
#[derive(Args, Clone, Copy, Serialize)]
pub struct Model {
    /// Width of the model.
    #[arg(long, default_value_t = 256)]
    pub dim: usize,
    /// Attention heads in a block.
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    /// Transformer blocks.
    #[arg(long, default_value_t = 8)]
    pub layers: usize,
    /// Positions in a sequence.
    #[arg(long, default_value_t = 64)]
    pub seq: usize,
    /// Sequences in a mini-batch.
    #[arg(long, default_value_t = 32)]
    pub batch: usize,
    /// Makes the blocks uneven: the hidden width of the first is that of the model, of the last
    /// eight times as much.
    #[arg(long)]
    pub uneven: bool,
}

impl Model {
    /// A pipeline of it on a backend, all else at its defaults.
    #[must_use]
    pub fn builder(self, backend: impl Backend + 'static) -> BenchBuilder {
        let Self { dim, heads, layers, uneven, .. } = self;
        let mut model = Sequential::<Tensor<3>>::new();
        for layer in 0..layers {
            let factor =
                if uneven { 1 << (3 * layer / layers.max(2).saturating_sub(1)) } else { 4 };
            let block = move |device: &Device| Block::new(dim, heads, factor * dim, device);
            model = model.push(format!("blocks.{layer}"), block);
        }
        Pipeline::builder(model)
            .backend(backend)
            .optimizer(SgdConfig::new().init())
            .learning_rate(1e-3)
            .loss(MeanSquaredError)
    }

    /// Random inputs and targets of shape `[batch, seq, dim]`.
    #[must_use]
    pub fn batch(self) -> (Tensor<3>, Tensor<3>) {
        let device = Device::flex();
        let floats =
            || Tensor::random([self.batch, self.seq, self.dim], Distribution::Default, &device);
        (floats(), floats())
    }

    /// The arguments that make this model again.
    #[must_use]
    pub fn arguments(self) -> Vec<String> {
        let Self { dim, heads, layers, seq, batch, uneven } = self;
        let sizes = [
            ("--dim", dim),
            ("--heads", heads),
            ("--layers", layers),
            ("--seq", seq),
            ("--batch", batch),
        ];
        let sizes = sizes.into_iter().flat_map(|(name, size)| [name.to_owned(), size.to_string()]);
        sizes.chain(uneven.then(|| "--uneven".to_owned())).collect()
    }
}

#[derive(Module, Debug)]
struct Block {
    norm_attention: LayerNorm,
    qkv: Linear,
    out: Linear,
    norm_mlp: LayerNorm,
    up: Linear,
    down: Linear,
    #[module(skip)]
    heads: usize,
}

impl Block {
    fn new(dim: usize, heads: usize, hidden: usize, device: &Device) -> Self {
        let norm = || LayerNormConfig::new(dim).init(device);
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            norm_attention: norm(),
            qkv: linear(dim, 3 * dim),
            out: linear(dim, dim),
            norm_mlp: norm(),
            up: linear(dim, hidden),
            down: linear(hidden, dim),
            heads,
        }
    }

    fn attention(&self, x: Tensor<3>, context: &LayerContext<'_>) -> Tensor<3> {
        let [batch, seq, dim] = x.dims();
        let width = dim / self.heads;
        let qkv = context.linear(&self.qkv, x);
        let part = |index: usize| {
            let part = qkv.clone().narrow(2, index * dim, dim);
            part.reshape([batch, seq, self.heads, width]).swap_dims(1, 2)
        };
        let scores = part(0).matmul(part(1).swap_dims(2, 3)).div_scalar((width as f64).sqrt());
        let mixed = softmax(scores, 3).matmul(part(2));
        context.linear(&self.out, mixed.swap_dims(1, 2).reshape([batch, seq, dim]))
    }
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let x = x.clone() + self.attention(self.norm_attention.forward(x), context);
        let hidden = gelu(context.linear(&self.up, self.norm_mlp.forward(x.clone())));
        x + context.linear(&self.down, hidden)
    }
}
