//! Training steps, measured.

use std::time::Instant;

use anyhow::Result;
use stovepipe::schedule::Timeline;
use stovepipe::tune::Time;

use crate::model::{BenchPipeline, Model};

/// Measured training steps.
#[derive(Default)]
pub struct Steps {
    /// When every action ran. On devices that queue work, when it was queued.
    pub timelines: Vec<Timeline>,
    /// How long each step took until all devices were done, in seconds.
    pub seconds: Vec<f64>,
}

impl Steps {
    /// Adds others of the same kind.
    pub fn extend(&mut self, more: Self) {
        self.timelines.extend(more.timelines);
        self.seconds.extend(more.seconds);
    }

    /// How long a step takes, in seconds.
    #[must_use]
    pub fn time(&self) -> Time {
        Time::of(self.seconds.clone())
    }
}

/// Runs `count` training steps, after two that warm up.
///
/// # Errors
///
/// If a step fails.
pub fn steps(pipeline: &mut BenchPipeline, model: Model, count: usize) -> Result<Steps> {
    const WARM_UP: usize = 2;
    let (x, y) = model.batch();
    let mut steps = Steps::default();
    for step in 0..WARM_UP + count {
        pipeline.synchronize()?;
        let start = Instant::now();
        let done = pipeline.step(x.clone(), y.clone())?;
        pipeline.synchronize()?;
        if step >= WARM_UP {
            steps.seconds.push(start.elapsed().as_secs_f64());
            steps.timelines.push(done.timeline);
        }
    }
    Ok(steps)
}
