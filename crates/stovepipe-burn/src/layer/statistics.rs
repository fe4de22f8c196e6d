//! Running statistics of batch normalization, and the observations of forwards that move them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;

use crate::value::dtype::cast;

/// The running mean and variance of a batch normalization, shared by all clones of the module.
#[derive(Clone)]
pub(crate) struct RunningStatistics(Arc<Mutex<(Tensor<1>, Tensor<1>)>>);

impl RunningStatistics {
    pub(crate) fn new(mean: Tensor<1>, variance: Tensor<1>) -> Self {
        Self(Arc::new(Mutex::new((mean, variance))))
    }

    pub(crate) fn get(&self) -> (Tensor<1>, Tensor<1>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for RunningStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunningStatistics")
    }
}

/// The statistics that one batch normalization saw in one training forward.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    /// The running statistics that it moves.
    pub(crate) running: RunningStatistics,
    pub(crate) momentum: f64,
    /// The number of elements of each feature.
    pub(crate) count: f64,
    /// The mean. Shape `[features]`.
    pub(crate) mean: Tensor<1>,
    /// The sum of the squared distances from the mean. Shape `[features]`.
    pub(crate) squares: Tensor<1>,
}

impl Observation {
    /// Merges two observations by the formula of Chan, Golub and LeVeque ("Updating Formulae
    /// and a Pairwise Algorithm for Computing Sample Variances", 1979), which avoids
    /// cancellation.
    fn merge(self, other: Self) -> Self {
        let count = self.count + other.count;
        let distance = other.mean - self.mean.clone();
        let mean = self.mean + distance.clone() * (other.count / count);
        let between = distance.powi_scalar(2) * (self.count * other.count / count);
        let squares = self.squares + other.squares + between;
        Self { count, mean, squares, ..self }
    }

    /// Moves the running statistics.
    fn apply(self) {
        let mut running = self.running.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mean, variance) = running.clone();
        let device = self.mean.device();
        let decayed = |value: Tensor<1>| value.to_device(&device) * (1.0 - self.momentum);
        let typed = |value: Tensor<1>| cast(value, mean.dtype());
        let unbiased = typed(self.squares / (self.count - 1.0).max(1.0));
        let seen = typed(self.mean);
        let mean = decayed(mean) + seen * self.momentum;
        let variance = decayed(variance) + unbiased * self.momentum;
        *running = (mean, variance);
    }
}

/// Moves the running statistics of a layer by the observations of its forwards, in the order
/// of the micro-batches.
pub(crate) fn commit_observations(forwards: Vec<Vec<Observation>>) {
    let mut merged: Vec<Observation> = Vec::new();
    for observation in forwards.into_iter().flatten() {
        // Observations of one module are merged over all its uses and all micro-batches.
        let same_module =
            |other: &&mut Observation| Arc::ptr_eq(&other.running.0, &observation.running.0);
        match merged.iter_mut().find(same_module) {
            Some(earlier) => *earlier = earlier.clone().merge(observation),
            None => merged.push(observation),
        }
    }
    merged.into_iter().for_each(Observation::apply);
}
