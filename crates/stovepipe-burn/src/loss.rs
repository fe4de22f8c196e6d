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

/// Mean squared error over all elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

impl<const D: usize> Loss<Tensor<D>, Tensor<D>> for MeanSquaredError {
    fn forward(&self, output: Tensor<D>, target: Tensor<D>) -> LossSum {
        let elements = target.shape().num_elements() as f64;
        LossSum::new((output - target).powi_scalar(2).sum(), elements)
    }
}

impl MeanSquaredError {
    /// The same, but each sample counts as much as its weight says: targets are pairs of values and
    /// weights of shape `[batch]`.
    #[must_use]
    pub fn weighted(self) -> Weighted<Self> {
        Weighted(self)
    }
}

/// A loss whose targets bring weights along. Made by [`MeanSquaredError::weighted`] and
/// [`CrossEntropy::weighted`].
#[derive(Clone, Copy, Debug)]
pub struct Weighted<L>(L);

impl<const D: usize> Loss<Tensor<D>, (Tensor<D>, Tensor<1>)> for Weighted<MeanSquaredError> {
    fn forward(&self, output: Tensor<D>, (target, weights): (Tensor<D>, Tensor<1>)) -> LossSum {
        let [samples] = weights.dims();
        let each = target.shape().num_elements() / samples.max(1);
        let squares = (output - target).powi_scalar(2).reshape([samples, each]).sum_dim(1);
        let sum = (squares * weights.clone().reshape([samples, 1])).sum();
        LossSum::new(sum, weights.sum() * each as f64)
    }
}

/// Cross-entropy between logits and class numbers, in nats, averaged over samples (logits
/// `[batch, classes]`, targets `[batch]`) or tokens (logits `[batch, sequence, classes]`, targets
/// `[batch, sequence]`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy;

impl CrossEntropy {
    /// The same, but each sample or token counts as much as its weight says: targets are pairs of class
    /// numbers and weights of the same shape.
    #[must_use]
    pub fn weighted(self) -> Weighted<Self> {
        Weighted(self)
    }

    /// The same, but targets of this class don't count, such as those of padding.
    #[must_use]
    pub fn ignoring(self, class: i64) -> CrossEntropyIgnoring {
        CrossEntropyIgnoring { class }
    }
}

/// [`CrossEntropy`] over all targets but those of one class. Made by [`CrossEntropy::ignoring`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyIgnoring {
    class: i64,
}

impl Loss<Tensor<2>, Tensor<1, Int>> for CrossEntropy {
    fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> LossSum {
        let [samples] = targets.dims();
        LossSum::new(log_likelihood(logits, targets).sum().neg(), samples as f64)
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for CrossEntropy {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        self.forward(flat_logits(logits), targets.reshape([-1]))
    }
}

/// The logarithm of the probability of each target. Shapes `[samples, classes]`, `[samples]`.
fn log_likelihood(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [samples] = targets.dims();
    log_softmax(logits, 1).gather(1, targets.reshape([samples, 1])).reshape([samples])
}

/// Tokens as samples.
fn flat_logits(logits: Tensor<3>) -> Tensor<2> {
    let [batch, sequence, classes] = logits.dims();
    logits.reshape([batch * sequence, classes])
}

impl Loss<Tensor<2>, (Tensor<1, Int>, Tensor<1>)> for Weighted<CrossEntropy> {
    fn forward(
        &self,
        logits: Tensor<2>,
        (targets, weights): (Tensor<1, Int>, Tensor<1>),
    ) -> LossSum {
        let sum = (log_likelihood(logits, targets) * weights.clone()).sum().neg();
        LossSum::new(sum, weights.sum())
    }
}

impl Loss<Tensor<3>, (Tensor<2, Int>, Tensor<2>)> for Weighted<CrossEntropy> {
    fn forward(
        &self,
        logits: Tensor<3>,
        (targets, weights): (Tensor<2, Int>, Tensor<2>),
    ) -> LossSum {
        self.forward(flat_logits(logits), (targets.reshape([-1]), weights.reshape([-1])))
    }
}

impl Loss<Tensor<2>, Tensor<1, Int>> for CrossEntropyIgnoring {
    fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> LossSum {
        let ignored = targets.clone().equal_scalar(self.class);
        // An ignored class may be none of the logits': any other is looked up in its place.
        let targets = targets.mask_fill(ignored.clone(), 0);
        // Left out, not multiplied by zero: what was looked up may be infinite.
        let sum = log_likelihood(logits, targets).mask_fill(ignored.clone(), 0.0).sum().neg();
        LossSum::new(sum, ignored.bool_not().float().sum())
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for CrossEntropyIgnoring {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        self.forward(flat_logits(logits), targets.reshape([-1]))
    }
}

/// How many targets are the class with the highest logit: a [metric](crate::Builder::metric) for the
/// models of [`CrossEntropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy;

impl Loss<Tensor<2>, Tensor<1, Int>> for Accuracy {
    fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> LossSum {
        let [samples] = targets.dims();
        let right = logits.argmax(1).reshape([samples]).equal(targets);
        LossSum::new(right.float().sum(), samples as f64)
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for Accuracy {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        self.forward(flat_logits(logits), targets.reshape([-1]))
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

/// Outputs as losses and metrics take them: in at least 32 bits, or sums over many samples lose them.
pub(crate) fn wide(outputs: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    outputs.iter().map(|part| part.clone_box().widen()).collect()
}

/// A loss multiplied by `scale`.
pub(crate) fn scaled(loss: Tensor<1>, scale: f64) -> Tensor<1> {
    if scale == 1.0 { loss } else { loss.mul_scalar(scale) }
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
        let result = loss(wide(&leaves), target)?;
        Ok((Self { leaves, sum: result.sum.clone() }, result))
    }

    /// The gradients of the outputs, for a loss multiplied by `scale`; none where it doesn't depend on one.
    pub(crate) fn backward(self, scale: f64) -> Vec<Option<Box<dyn Part>>> {
        if !self.sum.is_tracked() {
            return self.leaves.iter().map(|_| None).collect();
        }
        let mut gradients = scaled(self.sum, scale).backward();
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
        assert_eq!(loss.weight.read(), 2.0);
        let tokens =
            CrossEntropy.forward(logits.reshape([1, 2, 2]), Tensor::from_data([[0, 0]], &device));
        assert!((f64::from(tokens.sum.into_scalar::<f32>()) - expected).abs() < 1e-6);
    }

    #[test]
    fn weighted_and_ignored_tokens() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_data([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]], &device);
        let targets = |classes: [i32; 3]| Tensor::<1, Int>::from_data(classes, &device);
        let value = |loss: LossSum| (loss.sum.into_scalar::<f32>(), loss.weight.read());
        let whole = |classes: [i32; 3], rows: usize| {
            let (logits, targets) = (logits.clone(), targets(classes));
            value(CrossEntropy.forward(logits.narrow(0, 0, rows), targets.narrow(0, 0, rows)))
        };
        // -100 is no class at all.
        let ignoring = CrossEntropy.ignoring(-100);
        assert_eq!(
            value(ignoring.forward(logits.clone(), targets([0, 1, -100]))),
            whole([0, 1, 0], 2)
        );
        let masked = logits.clone().slice_fill([0..3, 0..1], f32::NEG_INFINITY);
        let found = value(CrossEntropy.ignoring(0).forward(masked, targets([1, 1, 0])));
        assert_eq!(found, (0.0, 2.0));
        let nothing = value(ignoring.forward(logits.clone(), targets([-100, -100, -100])));
        assert_eq!(nothing, (0.0, 0.0));
        let weights = Tensor::<1>::from_data([0.5, 0.0, 2.0], &device);
        let found =
            value(CrossEntropy.weighted().forward(logits.clone(), (targets([0, 1, 1]), weights)));
        let first = whole([0, 1, 1], 1).0;
        assert!((f64::from(found.0) - (0.5 * f64::from(first) + 2.0 * 2.0f64.ln())).abs() < 1e-6);
        assert_eq!(found.1, 2.5);
    }

    #[test]
    fn weighted_squares() {
        let device = Device::flex();
        let output = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
        let weights = Tensor::<1>::from_data([1.0, 3.0], &device);
        let loss =
            MeanSquaredError.weighted().forward(output.clone(), (output.zeros_like(), weights));
        assert_eq!((loss.sum.into_scalar::<f32>(), loss.weight.read()), (5.0 + 3.0 * 25.0, 8.0));
    }
}
