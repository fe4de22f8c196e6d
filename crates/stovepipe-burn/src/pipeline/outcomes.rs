//! The results of steps, accumulations, gradients and evaluations.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use stovepipe_schedule::Timeline;

/// The result of one training step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// The mean loss over the mini-batch, at the parameters before the update.
    pub loss: f64,
    /// The weight of the loss, which the mean was divided by: the sum over all micro-batches.
    pub weight: f64,
    /// The losses that layers [added](crate::LayerContext::add_loss), divided by the same
    /// weight. They aren't part of `loss`.
    pub added_loss: f64,
    /// The mean of each [metric](crate::Builder::metric).
    pub metrics: BTreeMap<String, f64>,
    /// The norm of the mean gradient before it was clipped. Mini-batches accumulated before
    /// count too.
    ///
    /// It is known where gradients are clipped by their norm or the loss is scaled.
    pub gradient_norm: Option<f64>,
    /// The paths of the parameters that are to be trained, but had no gradient in the whole step
    /// and so stayed as they were.
    ///
    /// The loss didn't depend on them. If that goes on, a layer may ignore what it was given, or
    /// a value may lose its gradient on the way. Freeze what isn't to be trained.
    pub without_gradient: Vec<String>,
    /// The base learning rate of the update.
    pub learning_rate: f64,
    /// The factor that the loss was multiplied by for the backward: see
    /// [`Builder::loss_scaling`](crate::Builder::loss_scaling).
    pub loss_scale: f64,
    /// Says whether the step overflowed: there was no update because a gradient wasn't finite.
    pub overflowed: bool,
    /// The number of micro-batches: fewer than asked for if the mini-batch had fewer samples.
    pub micro_batches: usize,
    /// The time at which every action ran, in seconds.
    pub timeline: Timeline,
}

/// The result of accumulating one mini-batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Accumulation {
    /// The mean loss over the mini-batch.
    pub loss: f64,
    /// The weight of the loss, which the mean was divided by: the sum over all micro-batches.
    pub weight: f64,
    /// Says whether the gradients were forgotten because one wasn't finite.
    ///
    /// Only [loss scaling](crate::Builder::loss_scaling) allows that. What was accumulated
    /// before is kept.
    pub overflowed: bool,
    /// The time at which every action ran, in seconds.
    pub timeline: Timeline,
}

/// The result of an evaluation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Evaluation {
    /// The mean loss over the mini-batch.
    pub loss: f64,
    /// The weight of the loss, which the mean was divided by: the sum over all micro-batches.
    pub weight: f64,
    /// The losses that layers [added](crate::LayerContext::add_loss), divided by the same
    /// weight. They aren't part of `loss`.
    pub added_loss: f64,
    /// The mean of each [metric](crate::Builder::metric).
    pub metrics: BTreeMap<String, f64>,
    /// The time at which every action ran, in seconds.
    pub timeline: Timeline,
}

/// The loss and the gradients of a mini-batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gradients {
    /// The mean loss over the mini-batch.
    pub loss: f64,
    /// The gradients of the mean loss, by the paths of the parameters in the model. Parameters
    /// that the loss doesn't depend on are absent.
    pub gradients: BTreeMap<String, TensorData>,
    /// Says whether a gradient isn't finite, which is checked where the loss is
    /// [scaled](crate::Builder::loss_scaling). A dynamic scale is smaller the next time.
    pub overflowed: bool,
}
