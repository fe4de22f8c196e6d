//! Losses as a sum and a weight, so that the mean is over the whole mini-batch however it is split.

use burn::tensor::{Int, Tensor, activation::log_softmax};

use crate::Boundary;
use crate::StageError;
use crate::boundary::from_parts;
use crate::part::{Packet, Part};

/// The loss of one micro-batch, not yet averaged.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// The sum over what is averaged: samples, tokens or elements. Shape `[1]`.
    pub sum: Tensor<1>,
    /// How many of them there are, or the sum of their weights.
    pub weight: f64,
}

impl LossSum {
    /// A sum over things that weigh `weight` together.
    #[must_use]
    pub fn new(sum: Tensor<1>, weight: impl Into<f64>) -> Self {
        Self { sum, weight: weight.into() }
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

/// Mean squared error over all elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

impl<const D: usize> Loss<Tensor<D>, Tensor<D>> for MeanSquaredError {
    fn forward(&self, output: Tensor<D>, target: Tensor<D>) -> LossSum {
        let elements = target.shape().num_elements() as f64;
        LossSum::new((output - target).powi_scalar(2).sum(), elements)
    }
}

/// Cross-entropy between logits and class numbers, in nats, averaged over samples (logits
/// `[batch, classes]`, targets `[batch]`) or tokens (logits `[batch, sequence, classes]`, targets
/// `[batch, sequence]`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy;

impl Loss<Tensor<2>, Tensor<1, Int>> for CrossEntropy {
    fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> LossSum {
        let [samples] = targets.dims();
        let picked = log_softmax(logits, 1).gather(1, targets.reshape([samples, 1]));
        LossSum::new(picked.sum().neg(), samples as f64)
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for CrossEntropy {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        let [batch, sequence, classes] = logits.dims();
        let logits = logits.reshape([batch * sequence, classes]);
        self.forward(logits, targets.reshape([batch * sequence]))
    }
}

/// Stands for a loss that hasn't been set; such a pipeline only predicts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLoss;

/// A loss with its types erased.
pub(crate) type ErasedLoss =
    dyn Fn(Vec<Box<dyn Part>>, Packet) -> Result<LossSum, StageError> + Send + Sync;

pub(crate) fn erase<O: Boundary, T: Boundary>(loss: impl Loss<O, T>) -> Box<ErasedLoss> {
    Box::new(move |output, target| {
        let output = from_parts::<O>(output).map_err(StageError::Loss)?;
        let target = from_parts::<T>(target.into_values()).map_err(StageError::Loss)?;
        Ok(loss.forward(output, target))
    })
}

/// The loss of a micro-batch whose backward hasn't run.
pub(crate) struct LossTape {
    leaves: Vec<Box<dyn Part>>,
    sum: Tensor<1>,
}

impl LossTape {
    /// Computes the loss of outputs that are off the tape.
    pub(crate) fn record(
        loss: &ErasedLoss,
        outputs: Vec<Box<dyn Part>>,
        target: Packet,
    ) -> Result<(Self, LossSum), StageError> {
        let leaves: Vec<Box<dyn Part>> = outputs.into_iter().map(|part| part.leaf()).collect();
        let result = loss(leaves.iter().map(|leaf| leaf.clone_box()).collect(), target)?;
        Ok((Self { leaves, sum: result.sum.clone() }, result))
    }

    /// The gradients of the outputs; none where the loss doesn't depend on one.
    pub(crate) fn backward(self) -> Vec<Option<Box<dyn Part>>> {
        if !self.sum.is_tracked() {
            return self.leaves.iter().map(|_| None).collect();
        }
        let mut gradients = self.sum.backward();
        self.leaves.iter().map(|leaf| leaf.take_gradient(&mut gradients)).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn cross_entropy_is_a_sum_over_tokens() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_data([[2.0, 0.0], [0.0, 1.0]], &device);
        let targets = Tensor::<1, Int>::from_data([0, 0], &device);
        let loss = CrossEntropy.forward(logits.clone(), targets);
        let expected = (1.0 + (-2.0f64).exp()).ln() + (1.0 + 1.0f64.exp()).ln();
        assert!((f64::from(loss.sum.into_scalar::<f32>()) - expected).abs() < 1e-6);
        assert_eq!(loss.weight, 2.0);
        let tokens =
            CrossEntropy.forward(logits.reshape([1, 2, 2]), Tensor::from_data([[0, 0]], &device));
        assert!((f64::from(tokens.sum.into_scalar::<f32>()) - expected).abs() < 1e-6);
    }
}
