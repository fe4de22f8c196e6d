//! Training steps, measured.

use anyhow::Result;
use stovepipe::burn::tensor::Tensor;
use stovepipe::prelude::*;
use stovepipe::schedule::Timeline;

use crate::Model;

/// A pipeline of the [`Model`].
pub type Running = Pipeline<Tensor<3>, Tensor<3>, Tensor<3>>;

/// The timelines of `steps` training steps, after two that warm up.
///
/// # Errors
///
/// If a step fails.
pub fn timelines(pipeline: &mut Running, model: Model, steps: usize) -> Result<Vec<Timeline>> {
    const WARM_UP: usize = 2;
    let (x, y) = model.batch();
    let mut timelines = Vec::new();
    for step in 0..WARM_UP + steps {
        let done = pipeline.step(x.clone(), y.clone())?;
        if step >= WARM_UP {
            timelines.push(done.timeline);
        }
    }
    Ok(timelines)
}

/// How long steps took, in seconds.
#[derive(Clone, Copy, serde::Serialize)]
pub struct Seconds {
    /// The median.
    pub median: f64,
    /// The distance between the lower and the upper quartile.
    pub spread: f64,
}

impl Seconds {
    /// Of at least one step.
    #[must_use]
    pub fn of(timelines: &[Timeline]) -> Self {
        let mut steps: Vec<f64> = timelines.iter().map(Timeline::makespan).collect();
        steps.sort_by(f64::total_cmp);
        let at = |quarter: usize| steps[(steps.len() - 1) * quarter / 4];
        Self { median: at(2), spread: at(3) - at(1) }
    }
}
