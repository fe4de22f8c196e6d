//! Training steps, measured.

use anyhow::Result;
use stovepipe::burn::tensor::Tensor;
use stovepipe::prelude::*;
use stovepipe::schedule::Timeline;
use stovepipe::tune::Time;

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
#[must_use]
pub fn seconds(timelines: &[Timeline]) -> Time {
    Time::of(timelines.iter().map(Timeline::makespan).collect())
}
