//! Looped breadth-first: several stages on each rank, one after the other (arXiv 2211.05953).

use crate::plan::Plan;
use crate::schedules::gpipe::Drain;
use crate::schedules::named::NamedSchedule;
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::shape::Shape;

/// GPipe with V stages on each rank, each of which takes all micro-batches before the next begins:
/// stage s lives on rank s modulo P.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2  .   .  2B2 2B1 2B0 0B2 0B1 0B0
/// rank 1 |  .  1F0 1F1 1F2 3F0 3F1 3F2 3B2 3B1 3B0 1B2 1B1 1B0  .
/// ```
///
/// With uniform costs, F and B for a whole rank, and M ≥ P, each rank idles (P−1)(F+B)/V
/// (Breadth-First Pipeline Parallelism, section 4). Every rank keeps all MV stages' activations.
/// Messages of a stage follow each other, and so do its gradients, which suits sharded data
/// parallelism. Any P, V and M; with V = 1 it is GPipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoopedBfs {
    /// The order of each stage's backwards.
    pub drain: Drain,
}

impl LoopedBfs {
    /// With backwards in this order.
    #[must_use]
    pub fn new(drain: Drain) -> Self {
        Self { drain }
    }
}

impl Schedule for LoopedBfs {
    fn name(&self) -> &str {
        match self.drain {
            Drain::Reverse => "looped-bfs",
            Drain::Forward => "looped-bfs-forward",
        }
    }

    fn default_stages_per_rank(&self) -> usize {
        2
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check()?;
        Plan::new((0..shape.ranks).map(|rank| {
            let stages =
                (0..shape.stages_per_rank).map(|local| Stage::new(local * shape.ranks + rank));
            let all = || MicroBatch::first(shape.micro_batches);
            let mut row = Vec::with_capacity(2 * shape.stages_per_rank * shape.micro_batches);
            for stage in stages.clone() {
                row.extend(all().map(|m| Compute::forward(stage, m)));
            }
            for stage in stages.rev() {
                let drain = |m| Compute::backward(stage, m);
                match self.drain {
                    Drain::Reverse => row.extend(all().rev().map(drain)),
                    Drain::Forward => row.extend(all().map(drain)),
                }
            }
            row
        }))
    }
}

/// The entry of the drain that takes the last micro-batch first.
pub(super) const REVERSE: NamedSchedule = NamedSchedule {
    name: "looped-bfs",
    summary: "Sends all micro-batches through one stage of a rank before its next; drains the last one first.",
    tuned: true,
    make: || Box::new(LoopedBfs::new(Drain::Reverse)),
};

/// The entry of the drain that takes the first micro-batch first.
pub(super) const FORWARD: NamedSchedule = NamedSchedule {
    name: "looped-bfs-forward",
    summary: "Sends all micro-batches through one stage of a rank before its next; drains the first one first.",
    tuned: true,
    make: || Box::new(LoopedBfs::new(Drain::Forward)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan =
            LoopedBfs::default().plan(Shape::new(2, 3).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2  .   .  2B2 2B1 2B0 0B2 0B1 0B0
rank 1 |  .  1F0 1F1 1F2 3F0 3F1 3F2 3B2 3B1 3B0 1B2 1B1 1B0  .
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn one_stage_per_rank_is_gpipe() {
        for drain in [Drain::Reverse, Drain::Forward] {
            let shape = Shape::new(4, 6);
            assert_eq!(LoopedBfs::new(drain).plan(shape), crate::GPipe::new(drain).plan(shape));
        }
    }
}
