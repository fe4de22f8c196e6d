//! Models, and the layers that most of them begin and end with.

use stovepipe::burn::nn::{EmbeddingConfig, LayerNormConfig};
use stovepipe::burn::tensor::Tensor;
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::{Boundary, Sequential};

use crate::layers::{Attention, Embed, Fork, Join, linear};
use crate::values::{CLASSES, DIM, Tokens};

/// Seven layers: token ids, an input that is used four times, a tuple with unused parts, a layer
/// without parameters.
#[must_use]
pub fn toy() -> Sequential<Tokens, Tensor<3>> {
    Sequential::<Tokens>::new()
        .push("embed", Embed::new)
        .push("attention", Attention::new)
        .push("fork", Fork::new)
        .push("join", Join::new)
        .push_fn("gelu", |x: Tensor<3>| gelu(x))
        .push_module("norm", |d| LayerNormConfig::new(DIM).init(d), |m, x: Tensor<3>| m.forward(x))
        .head()
}

/// A model that begins with the layer `embed`: token ids to vectors of width [`DIM`]. It usually
/// ends with [`LinearLayers::head`].
#[must_use]
pub fn embed() -> Sequential<Tokens, Tensor<3>> {
    Sequential::<Tokens>::new().push_module(
        "embed",
        |d| EmbeddingConfig::new(CLASSES, DIM).init(d),
        |m, ids| m.forward(ids),
    )
}

/// Linear layers in one word each.
pub trait LinearLayers: Sized {
    /// Appends a linear layer.
    #[must_use]
    fn linear(self, name: impl Into<String>, from: usize, to: usize) -> Self;

    /// Appends the layer `head`: from width [`DIM`] to logits of [`CLASSES`] classes.
    #[must_use]
    fn head(self) -> Self {
        self.linear("head", DIM, CLASSES)
    }
}

impl<In: Boundary, const D: usize> LinearLayers for Sequential<In, Tensor<D>>
where
    Tensor<D>: Boundary,
{
    fn linear(self, name: impl Into<String>, from: usize, to: usize) -> Self {
        self.push_module(name, linear(from, to), |m, x: Tensor<D>| m.forward(x))
    }
}
