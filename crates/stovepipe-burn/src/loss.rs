//! Losses as a sum and a weight, so that the mean is over the whole mini-batch however it is split.

use burn::tensor::Tensor;

pub(crate) mod erasure;
pub(crate) mod losses;
pub(crate) mod scaling;

/// The loss of one micro-batch, not yet averaged.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// The sum over what is averaged: samples, tokens or elements. Shape `[1]`.
    pub sum: Tensor<1>,
    /// How many of them there are, or the sum of their weights.
    pub weight: Weight,
}

impl LossSum {
    /// A sum over things that weigh `weight` together: a number, or a tensor of shape `[1]` where it
    /// depends on the data, which is read once at the end of the step.
    #[must_use]
    pub fn new(sum: Tensor<1>, weight: impl Into<Weight>) -> Self {
        Self { sum, weight: weight.into() }
    }
}

/// What a loss is to be divided by.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "there is one for each micro-batch, not more")]
pub enum Weight {
    /// Known from shapes.
    Known(f64),
    /// On the device still. Shape `[1]`.
    OnDevice(Tensor<1>),
}

impl Weight {
    /// Off the tape.
    pub(crate) fn inner(self) -> Self {
        match self {
            Self::OnDevice(weight) if weight.device().is_autodiff() => {
                Self::OnDevice(weight.inner())
            }
            other => other,
        }
    }

    /// Its value; reads from the device where it is there.
    #[must_use]
    pub fn read(&self) -> f64 {
        match self {
            Self::Known(weight) => *weight,
            Self::OnDevice(weight) => weight.to_data().iter::<f64>().sum(),
        }
    }
}

impl From<f64> for Weight {
    fn from(weight: f64) -> Self {
        Self::Known(weight)
    }
}

impl From<Tensor<1>> for Weight {
    fn from(weight: Tensor<1>) -> Self {
        Self::OnDevice(weight)
    }
}

/// Compares the model's output with the target.
///
/// The step's loss is the sum of the micro-batches' sums, divided by the sum of their weights. So the
/// loss must be a sum over samples (or tokens, or elements) that doesn't depend on the others.
/// Closures `Fn(Output, Target) -> LossSum` are losses.
///
/// ```
/// use burn::tensor::Tensor;
/// use stovepipe_burn::{Loss, LossSum};
///
/// let absolute = |output: Tensor<2>, target: Tensor<2>| {
///     let elements = target.shape().num_elements() as f64;
///     LossSum::new((output - target).abs().sum(), elements)
/// };
/// # fn takes(_: impl Loss<Tensor<2>, Tensor<2>>) {}
/// # takes(absolute);
/// ```
pub trait Loss<Output, Target>: Send + Sync + 'static {
    /// The loss of one micro-batch. Runs on the last stage's device.
    fn forward(&self, output: Output, target: Target) -> LossSum;
}

impl<O, T, F> Loss<O, T> for F
where
    F: Fn(O, T) -> LossSum + Send + Sync + 'static,
{
    fn forward(&self, output: O, target: T) -> LossSum {
        self(output, target)
    }
}

/// Stands for a loss that hasn't been set; such a pipeline only predicts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLoss;
