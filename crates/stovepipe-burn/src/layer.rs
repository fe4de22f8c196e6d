//! The trait of layers.

use burn::module::Module;

use crate::layer::context::LayerContext;
use crate::value::boundary::Boundary;

pub(crate) mod apply;
pub(crate) mod batch_norm;
pub(crate) mod context;
pub(crate) mod noise;
pub(crate) mod random;
pub(crate) mod sample_axis;
pub(crate) mod statistics;

/// A Burn module with one typed input and one typed output: the smallest thing that is cut
/// off.
///
/// The forward must be a function of the module's parameters, the input and the context alone.
/// It must compute the same values whenever it is called with the same ones, because
/// recomputation calls it a second time. In particular it must not draw random numbers from
/// the device's generator: use [`LayerContext::dropout`], [`LayerContext::uniform`] and
/// [`LayerContext::normal`].
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{LayerNorm, Linear};
/// use burn::tensor::{Tensor, activation::gelu};
/// use stovepipe_burn::{LayerContext, Layer};
///
/// #[derive(Module, Debug)]
/// struct FeedForward {
///     norm: LayerNorm,
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Layer for FeedForward {
///     type Input = Tensor<3>;
///     type Output = Tensor<3>;
///
///     fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
///         let hidden = gelu(self.up.forward(self.norm.forward(x.clone())));
///         x + self.down.forward(hidden)
///     }
/// }
/// ```
pub trait Layer: Module + 'static {
    /// The type of the input.
    type Input: Boundary;
    /// The type of the output.
    type Output: Boundary;

    /// Computes the output.
    ///
    /// # Panics
    ///
    /// May panic, as tensor operations do on wrong shapes. The step then ends with an error
    /// that names the layer and its stage, and nothing is updated.
    fn forward(&self, input: Self::Input, context: &mut LayerContext<'_>) -> Self::Output;

    /// Returns the names of the values that every forward [stashes](LayerContext::stash) for a
    /// later layer.
    ///
    /// Names are unique in the whole model: a layer type of which the model has several takes
    /// its names as arguments.
    fn stashes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the names of the values that every forward [pops](LayerContext::pop).
    ///
    /// Each is stashed by an earlier layer, and popped by no other.
    fn pops(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the floating-point operations that a forward takes for one sample, or `None` if
    /// the layer doesn't state them.
    ///
    /// [`LayerCosts::Flops`](crate::LayerCosts::Flops) balances them.
    fn flops(&self) -> Option<f64> {
        None
    }
}
