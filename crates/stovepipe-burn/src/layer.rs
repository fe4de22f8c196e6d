//! The trait of layers.

use burn::module::Module;
use burn::tensor::FloatDType;

use crate::layer::context::LayerContext;
use crate::value::boundary::Boundary;

pub(crate) mod apply;
pub(crate) mod batch_norm;
pub(crate) mod context;
pub(crate) mod flat;
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

    /// Returns whether the layer computes in 32 bits where others compute in the type of
    /// [`Builder::compute_dtype`](crate::Builder::compute_dtype).
    ///
    /// [`Builder::full_precision`](crate::Builder::full_precision) says so of a layer by name.
    fn full_precision(&self) -> bool {
        false
    }

    /// Returns the layer with its constants cast, or `None` if it doesn't cast any.
    ///
    /// Constants are tensors of floats that aren't parameters, such as the table of a positional
    /// encoding: Burn's mappers don't see them. A layer that has some must cast them here to
    /// compute in another type than the device's own; otherwise the pipeline isn't built.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::{Linear, PositionalEncoding};
    /// use burn::tensor::{FloatDType, Tensor};
    /// use stovepipe_burn::{LayerContext, Layer};
    ///
    /// #[derive(Module, Debug)]
    /// struct Positions {
    ///     encoding: PositionalEncoding,
    ///     linear: Linear,
    /// }
    ///
    /// impl Layer for Positions {
    ///     type Input = Tensor<3>;
    ///     type Output = Tensor<3>;
    ///
    ///     fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
    ///         self.linear.forward(self.encoding.forward(x))
    ///     }
    ///
    ///     fn cast_constants(mut self, dtype: FloatDType) -> Option<Self> {
    ///         self.encoding.sinusoids = self.encoding.sinusoids.cast(dtype);
    ///         Some(self)
    ///     }
    /// }
    /// ```
    fn cast_constants(self, dtype: FloatDType) -> Option<Self> {
        let _ = dtype;
        None
    }
}
