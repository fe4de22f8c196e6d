//! The arguments for the shape that a schedule plans for.

use std::fmt;

use anyhow::{Context, Result};
use clap::Args;
use stovepipe_schedule::{Plan, Schedule, Shape, schedule_named};

/// The shape that is planned for.
#[derive(Args, Clone, Copy)]
pub(crate) struct ShapeArguments {
    /// Ranks: workers with a device each.
    #[arg(long, value_name = "P")]
    pub(crate) ranks: usize,
    /// Micro-batches that the mini-batch is cut into.
    #[arg(long, value_name = "M")]
    pub(crate) micro_batches: usize,
    /// Stages on each rank; by default 2 for schedules of several, otherwise 1.
    #[arg(long, value_name = "V")]
    pub(crate) stages_per_rank: Option<usize>,
}

/// As on the command line.
impl fmt::Display for ShapeArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--ranks {} --micro-batches {}", self.ranks, self.micro_batches)?;
        match self.stages_per_rank {
            Some(stages) => write!(f, " --stages-per-rank {stages}"),
            None => Ok(()),
        }
    }
}

impl ShapeArguments {
    /// The shape for a schedule.
    pub(crate) fn shape(&self, schedule: &dyn Schedule) -> Shape {
        let stages_per_rank =
            self.stages_per_rank.unwrap_or_else(|| schedule.default_stages_per_rank());
        Shape::new(self.ranks, self.micro_batches).with_stages_per_rank(stages_per_rank)
    }

    /// The plan that the schedule of this name writes.
    pub(crate) fn plan(&self, schedule: &str) -> Result<Plan> {
        let schedule = schedule_named(schedule)?;
        let plan = schedule.plan(self.shape(&schedule));
        plan.with_context(|| format!("--schedule {} {self}", schedule.name()))
    }
}
