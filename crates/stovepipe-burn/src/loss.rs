//! Losses as a sum and a weight, so that the mean over the mini-batch doesn't depend on how it
//! is split.

use burn::tensor::Tensor;

use crate::error::shape::ShapeError;
use crate::value::sum::ordered_sum;

pub(crate) mod erasure;
pub(crate) mod losses;
pub(crate) mod scaling;

/// The loss of one micro-batch, not yet averaged.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// The sum over samples, tokens or elements. Shape `[1]`.
    pub sum: Tensor<1>,
    /// The number of samples, tokens or elements, or the sum of their weights.
    pub weight: Weight,
}

impl LossSum {
    /// Refuses a sum or a weight that isn't one number. `what` names the loss.
    pub(crate) fn check(&self, what: &str) -> Result<(), ShapeError> {
        let weight = match &self.weight {
            Weight::Known(_) => None,
            Weight::OnDevice(weight) => Some(("weight", weight)),
        };
        let mut numbers = [("sum", &self.sum)].into_iter().chain(weight);
        match numbers.find(|(_, number)| number.dims() != [1]) {
            Some((part, number)) => Err(ShapeError::LossSum {
                what: what.to_owned(),
                part,
                shape: number.dims().to_vec(),
            }),
            None => Ok(()),
        }
    }

    /// Creates a loss of a sum of shape `[1]` and the weight that divides it.
    ///
    /// The weight is a number, or a tensor of shape `[1]` if it depends on the data. The
    /// tensor is read once at the end of the step. With other shapes the step fails.
    #[must_use]
    pub fn new(sum: Tensor<1>, weight: impl Into<Weight>) -> Self {
        Self { sum, weight: weight.into() }
    }

    /// Creates a loss of its terms, of any shape, and the weight that divides their sum.
    ///
    /// The sum has the same bits for any number of threads. Burn's own `sum()` hasn't on Flex,
    /// where it adds 4 Mi elements or more in an order that depends on them.
    #[must_use]
    pub fn of_terms<const D: usize>(terms: Tensor<D>, weight: impl Into<Weight>) -> Self {
        Self::new(ordered_sum(terms), weight)
    }
}

/// The number that a loss's sum is divided by.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "there is one for each micro-batch, not more")]
pub enum Weight {
    /// A number, as known from shapes.
    Known(f64),
    /// A tensor that is still on the device. Shape `[1]`.
    OnDevice(Tensor<1>),
}

impl Weight {
    /// Takes it off the tape.
    pub(crate) fn inner(self) -> Self {
        match self {
            Self::OnDevice(weight) if weight.device().is_autodiff() => {
                Self::OnDevice(weight.inner())
            }
            other => other,
        }
    }

    /// Returns the number, after reading it from the device if it is there.
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

/// A loss or a metric: it compares the model's output with the target.
///
/// The step's loss is the sum of the micro-batches' sums, divided by the sum of their weights.
/// So the loss must be a sum over samples, tokens or elements, in which no term depends on
/// other samples.
///
/// Closures `Fn(Output, Target) -> LossSum` are losses.
///
/// ```
/// use burn::tensor::Tensor;
/// use stovepipe_burn::{Loss, LossSum};
///
/// let absolute = |output: Tensor<2>, target: Tensor<2>| {
///     let elements = target.shape().num_elements() as f64;
///     LossSum::of_terms((output - target).abs(), elements)
/// };
/// # fn takes(_: impl Loss<Tensor<2>, Tensor<2>>) {}
/// # takes(absolute);
/// ```
pub trait Loss<Output, Target>: Send + Sync + 'static {
    /// Computes the loss of one micro-batch, on the last stage's device.
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

/// The type in the place of a loss that hasn't been set; such a pipeline only predicts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLoss;
