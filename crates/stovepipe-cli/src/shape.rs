//! The arguments that name a schedule and the shape it plans for.

use anyhow::Result;
use clap::Args;
use stovepipe_schedule::{Plan, Schedule, Shape, schedule_named};

/// What is planned for.
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

impl ShapeArguments {
    /// The shape for a schedule.
    pub(crate) fn of(&self, schedule: &dyn Schedule) -> Shape {
        let stages_per_rank =
            self.stages_per_rank.unwrap_or_else(|| schedule.default_stages_per_rank());
        Shape::new(self.ranks, self.micro_batches).with_stages_per_rank(stages_per_rank)
    }

    /// The plan that the schedule of this name writes.
    pub(crate) fn plan(&self, schedule: &str) -> Result<Plan> {
        let schedule = schedule_named(schedule)?;
        Ok(schedule.plan(self.of(&schedule))?)
    }
}

/// The help for every `--schedule`.
pub(crate) const SCHEDULES: &str = "The schedule: gpipe, gpipe-forward, 1f1b, interleaved-1f1b, \
    looped-bfs, looped-bfs-forward, zb-h1, zb-v, dualpipe-v or forward-only";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_schedule() {
        let listed: Vec<&str> = SCHEDULES["The schedule: ".len()..]
            .split([',', ' '])
            .filter(|w| !w.is_empty())
            .collect();
        let known = stovepipe_schedule::schedules();
        for schedule in known {
            assert!(listed.contains(&schedule.name), "{}", schedule.name);
        }
        assert_eq!(listed.len(), known.len() + 1, "with the word `or`");
    }
}
