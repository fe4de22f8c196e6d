//! A small model with everything that crosses ranks: token ids, skips that span stages, dropout, a
//! tied parameter, batch normalization and a boundary part that gets no gradient.

use stovepipe::burn::module::Module;
use stovepipe::burn::tensor::Tensor;
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::prelude::*;
use stovepipe::{BatchNorm, Builder};
use stovepipe_testkit::{Down, LinearLayers, SEQ, Tokens, Up, classifier, embed};

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
    embed()
        .push("down.0", Down::dropping("0", 0.2))
        .push("down.1", Down::dropping("1", 0.2))
        .push("down.2", Down::dropping("2", 0.2))
        .push("normalize", |d| Normalize { norm: BatchNorm::new(SEQ, d) })
        .push("up.2", Up::at("2"))
        .push_fn_with_context("fault", fault)
        .push("up.1", Up::at("1"))
        .push("up.0", Up::at("0"))
        .push_fn("gelu", |x: Tensor<3>| gelu(x))
        .head()
        .tie(["down.0.linear.weight", "up.0.linear.weight"])
}

/// Begins the pipeline of every job.
pub(crate) fn builder(model: Sequential<Tokens, Tensor<3>>) -> Builder<Tokens, Tensor<3>, Tokens> {
    classifier(model)
        .backend(Flex::new())
        .layer_costs(LayerCosts::Uniform)
        .micro_batches(4)
        .metric("accuracy", Accuracy)
        .clip_gradients(Clipping::Norm(0.5))
        .seed(7)
}
