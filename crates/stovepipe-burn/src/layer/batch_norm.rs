//! Batch normalization whose running statistics are those of whole mini-batches.
//!
//! Recomputation, evaluation and failed steps don't change the running statistics.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::module::{batch_norm, batch_norm_train};
use burn::tensor::{Device, Tensor};

use crate::error::shape::ShapeError;
use crate::layer::context::{LayerContext, Pass};
use crate::layer::statistics::{Observation, RunningStatistics};
use crate::value::dtype::{cast, widen};

/// Batch normalization (Ioffe and Szegedy, arXiv 1502.03167) of inputs `[batch, features, …]`,
/// to be used inside a [`Layer`](crate::Layer).
///
/// In training each micro-batch is normalized by its own mean and variance. So the results
/// depend on the number of micro-batches. One with a single value of each feature, such as one
/// sample of shape `[1, features]`, has no variance: the step fails.
///
/// Evaluation normalizes with the running statistics. They move once per step (or
/// accumulation) that succeeds, by the mean and the unbiased variance of the whole mini-batch.
/// Recomputation and evaluation don't change them. So they are the same for every number of
/// stages and every checkpoint policy, whereas `burn::nn::BatchNorm` moves them in every
/// forward.
///
/// Clones share the running statistics.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use burn::tensor::Tensor;
/// use stovepipe_burn::{BatchNorm, LayerContext, Layer};
///
/// #[derive(Module, Debug)]
/// struct Normalized {
///     linear: Linear,
///     norm: BatchNorm,
/// }
///
/// impl Layer for Normalized {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
///         self.norm.forward(self.linear.forward(x), context)
///     }
/// }
/// ```
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// The scale. Shape `[features]`.
    pub gamma: Param<Tensor<1>>,
    /// The shift. Shape `[features]`.
    pub beta: Param<Tensor<1>>,
    #[module(skip)]
    running: RunningStatistics,
    /// The weight of a new mini-batch in the running statistics, from 0 to 1.
    #[module(skip)]
    pub momentum: f64,
    /// The number that is added to the variance.
    #[module(skip)]
    pub epsilon: f64,
    /// Says whether training also normalizes with the running statistics, and doesn't move
    /// them.
    #[module(skip)]
    pub frozen: bool,
}

impl BatchNorm {
    /// Creates a normalization of this number of features, with a momentum of 0.1 and an
    /// epsilon of 1e-5.
    #[must_use]
    pub fn new(features: usize, device: &Device) -> Self {
        let host = device.clone().inner();
        Self {
            gamma: Initializer::Ones.init([features], device),
            beta: Initializer::Zeros.init([features], device),
            running: RunningStatistics::new(
                Tensor::zeros([features], &host),
                Tensor::ones([features], &host),
            ),
            momentum: 0.1,
            epsilon: 1e-5,
            frozen: false,
        }
    }

    /// Returns the mean and the variance that evaluation uses. Shapes `[features]`.
    #[must_use]
    pub fn running_statistics(&self) -> (Tensor<1>, Tensor<1>) {
        self.running.get()
    }

    /// Normalizes `x` of shape `[batch, features, …]`, and returns a tensor of the same shape.
    ///
    /// # Panics
    ///
    /// If the second axis hasn't as many entries as there are features.
    pub fn forward<const D: usize>(
        &self,
        x: Tensor<D>,
        context: &mut LayerContext<'_>,
    ) -> Tensor<D> {
        // Statistics over many samples need more than 16 bits.
        let (dtype, x) = (x.dtype(), widen(x));
        let (gamma, beta) = (widen(self.gamma.val()), widen(self.beta.val()));
        if context.pass() == Pass::Evaluate || self.frozen {
            let device = x.device();
            let placed = |value: Tensor<1>| {
                let value = value.to_device(&device.clone().inner());
                if device.is_autodiff() { Tensor::from_inner(value) } else { value }
            };
            let (mean, variance) = self.running.get();
            let (mean, variance) = (placed(mean), placed(variance));
            return cast(batch_norm(x, gamma, beta, mean, variance, self.epsilon), dtype);
        }
        let count = x.shape().num_elements() / x.dims()[1].max(1);
        if count == 1 {
            let (layer, shape) = (context.layer().to_owned(), x.dims().to_vec());
            context.refuse(ShapeError::SingleValue { layer, shape });
            return cast(x, dtype);
        }
        let found = batch_norm_train(x, gamma, beta, self.epsilon);
        context.observe(Observation {
            running: self.running.clone(),
            momentum: self.momentum,
            count: count as f64,
            mean: found.mean.inner(),
            // The variance is the population's: the sum of the squares divided by the count.
            squares: found.variance.inner() * count as f64,
        });
        cast(found.output, dtype)
    }
}

impl From<burn::nn::BatchNorm> for BatchNorm {
    /// Takes over the parameters, running statistics and settings of Burn's. It is frozen if
    /// training is disabled there.
    fn from(norm: burn::nn::BatchNorm) -> Self {
        let inner = |value: Tensor<1>| {
            widen(if value.device().is_autodiff() { value.inner() } else { value })
        };
        Self {
            gamma: norm.gamma,
            beta: norm.beta,
            running: RunningStatistics::new(
                inner(norm.running_mean.value_sync()),
                inner(norm.running_var.value_sync()),
            ),
            momentum: norm.momentum,
            epsilon: norm.epsilon,
            frozen: !norm.training.val().is_enabled(),
        }
    }
}
