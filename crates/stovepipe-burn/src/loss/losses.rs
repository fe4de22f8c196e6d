//! The losses and metrics that most models are trained with.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

use crate::loss::{Loss, LossSum};
use crate::value::sum::ordered_sum;

/// Stops a loss whose outputs and targets would be broadcast to each other.
fn assert_same<const D: usize>(what: &str, found: [usize; D], targets: [usize; D]) {
    assert_eq!(found, targets, "{what} must have the shape of the targets, or it is broadcast");
}

/// The mean squared error over all elements. Outputs and targets have the same shape
/// `[batch, …]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

impl<const D: usize> Loss<Tensor<D>, Tensor<D>> for MeanSquaredError {
    fn forward(&self, output: Tensor<D>, target: Tensor<D>) -> LossSum {
        assert_same("the output", output.dims(), target.dims());
        let elements = target.shape().num_elements() as f64;
        LossSum::of_terms((output - target).powi_scalar(2), elements)
    }
}

impl MeanSquaredError {
    /// Returns the loss in which each sample counts by a weight.
    ///
    /// Targets are pairs of values and weights, of shapes `[batch, …]` and `[batch]`. The sum
    /// of the weighted squares is divided by the sum of the weights times the number of
    /// elements of a sample.
    #[must_use]
    pub fn weighted(self) -> Weighted<Self> {
        Weighted(self)
    }
}

/// A loss whose targets contain weights, made by [`MeanSquaredError::weighted`] and
/// [`CrossEntropy::weighted`].
#[derive(Clone, Copy, Debug)]
pub struct Weighted<L>(L);

impl<const D: usize> Loss<Tensor<D>, (Tensor<D>, Tensor<1>)> for Weighted<MeanSquaredError> {
    fn forward(&self, output: Tensor<D>, (target, weights): (Tensor<D>, Tensor<1>)) -> LossSum {
        assert_same("the output", output.dims(), target.dims());
        let [samples] = weights.dims();
        assert_same("the weight of samples", [samples], [target.dims()[0]]);
        let per_sample = target.shape().num_elements() / samples.max(1);
        let squares = (output - target).powi_scalar(2).reshape([samples, per_sample]).sum_dim(1);
        let terms = squares * weights.clone().reshape([samples, 1]);
        LossSum::of_terms(terms, ordered_sum(weights) * per_sample as f64)
    }
}

/// The cross-entropy between logits and class numbers, in nats: the mean of
/// `-log(softmax(logits)[target])`.
///
/// The mean is taken over:
///
/// - samples, for logits `[batch, classes]` and targets `[batch]`
/// - tokens, for logits `[batch, sequence, classes]` and targets `[batch, sequence]`
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy;

impl CrossEntropy {
    /// Returns the loss in which each sample or token counts by a weight.
    ///
    /// Targets are pairs of class numbers and weights of the same shape. The weighted sum is
    /// divided by the sum of the weights.
    #[must_use]
    pub fn weighted(self) -> Weighted<Self> {
        Weighted(self)
    }

    /// Returns the loss in which targets of this class don't count, such as those of padding.
    #[must_use]
    pub fn ignoring(self, class: i64) -> CrossEntropyIgnoring {
        CrossEntropyIgnoring { class }
    }
}

/// The [`CrossEntropy`] over all targets except those of one class, made by
/// [`CrossEntropy::ignoring`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyIgnoring {
    class: i64,
}

impl Loss<Tensor<2>, Tensor<1, Int>> for CrossEntropy {
    fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> LossSum {
        let [samples] = targets.dims();
        LossSum::of_terms(log_likelihood(logits, targets).neg(), samples as f64)
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for CrossEntropy {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        self.forward(flat_logits(logits), targets.reshape([-1]))
    }
}

/// Returns the logarithm of the probability of each target.
///
/// Logits are of shape `[samples, classes]`, targets and the result of shape `[samples]`.
fn log_likelihood(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [samples] = targets.dims();
    log_softmax(logits, 1).gather(1, targets.reshape([samples, 1])).reshape([samples])
}

/// Reshapes logits of tokens to `[batch * sequence, classes]`.
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
        assert_same("the weight of targets", weights.dims(), targets.dims());
        let terms = (log_likelihood(logits, targets) * weights.clone()).neg();
        LossSum::of_terms(terms, ordered_sum(weights))
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
        // There may be no logit for the ignored class: class 0 is looked up in its place.
        let targets = targets.mask_fill(ignored.clone(), 0);
        // The looked-up value may be infinite, so it is replaced, not multiplied by zero.
        let terms = log_likelihood(logits, targets).mask_fill(ignored.clone(), 0.0).neg();
        LossSum::of_terms(terms, ordered_sum(ignored.bool_not().float()))
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for CrossEntropyIgnoring {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        self.forward(flat_logits(logits), targets.reshape([-1]))
    }
}

/// The share of targets whose class has the highest logit: a [metric](crate::Builder::metric)
/// for models that are trained with [`CrossEntropy`].
///
/// Shapes are those of [`CrossEntropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy;

impl Loss<Tensor<2>, Tensor<1, Int>> for Accuracy {
    fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> LossSum {
        let [samples] = targets.dims();
        assert_same("the batch of logits", [logits.dims()[0]], [samples]);
        let hits = logits.argmax(1).reshape([samples]).equal(targets);
        LossSum::of_terms(hits.float(), samples as f64)
    }
}

impl Loss<Tensor<3>, Tensor<2, Int>> for Accuracy {
    fn forward(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> LossSum {
        self.forward(flat_logits(logits), targets.reshape([-1]))
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
        // There is no class -100.
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
