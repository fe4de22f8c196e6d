//! What steps, evaluations and the like return.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use stovepipe_schedule::Timeline;

/// What one training step did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// The mean loss over the mini-batch, at the parameters before the update.
    pub loss: f64,
    /// What the mean was over: the sum of the loss's weights.
    pub weight: f64,
    /// What layers [added](crate::LayerContext::add_loss), divided by the same weight; not part of `loss`.
    pub added_loss: f64,
    /// The mean of each [metric](crate::Builder::metric).
    pub metrics: BTreeMap<String, f64>,
    /// The norm of the mean gradient before it was clipped, where it is clipped by its norm or the loss is
    /// scaled. Mini-batches accumulated before count too.
    pub gradient_norm: Option<f64>,
    /// The base learning rate of the update.
    pub learning_rate: f64,
    /// What the loss was multiplied by for the backward: see
    /// [`Builder::loss_scaling`](crate::Builder::loss_scaling).
    pub loss_scale: f64,
    /// Whether there was no update because a gradient wasn't finite.
    pub overflowed: bool,
    /// How many micro-batches there were: fewer than asked for if the batch had fewer samples.
    pub micro_batches: usize,
    /// When every action ran, in seconds.
    pub timeline: Timeline,
}

/// What accumulating one mini-batch found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Accumulation {
    /// The mean loss over the mini-batch.
    pub loss: f64,
    /// What the mean was over: the sum of the loss's weights.
    pub weight: f64,
    /// Whether the gradients were forgotten because one wasn't finite, which only
    /// [loss scaling](crate::Builder::loss_scaling) allows. What was accumulated before is kept.
    pub overflowed: bool,
    /// When every action ran, in seconds.
    pub timeline: Timeline,
}

/// What an evaluation found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Evaluation {
    /// The mean loss over the batch.
    pub loss: f64,
    /// What the mean was over: the sum of the loss's weights.
    pub weight: f64,
    /// What layers [added](crate::LayerContext::add_loss), divided by the same weight; not part of `loss`.
    pub added_loss: f64,
    /// The mean of each [metric](crate::Builder::metric).
    pub metrics: BTreeMap<String, f64>,
    /// When every action ran, in seconds.
    pub timeline: Timeline,
}

/// Loss and gradients of a mini-batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gradients {
    /// The mean loss over the mini-batch.
    pub loss: f64,
    /// The gradient of the mean loss by the parameter's path in the model. Parameters that the loss
    /// doesn't depend on are absent.
    pub gradients: BTreeMap<String, TensorData>,
    /// Whether one isn't finite, which is looked at where the loss is
    /// [scaled](crate::Builder::loss_scaling): a dynamic scale is smaller the next time.
    pub overflowed: bool,
}
