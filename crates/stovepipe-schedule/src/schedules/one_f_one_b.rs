//! 1F1B: one forward, one backward (PipeDream-Flush, arXiv 2006.09503).

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::shape::Shape;

/// Each rank runs as many forwards ahead as there are ranks after it, then alternates.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
/// rank 1 |  .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
/// rank 2 |  .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
/// ```
///
/// The bubble is GPipe's, (P−1)/(M+P−1), but rank r keeps only min(P−r, M) micro-batches
/// (Megatron-LM, arXiv 2104.04473, section 2.2). One stage per rank, any P and M.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OneFOneB;

impl Schedule for OneFOneB {
    fn name(&self) -> &str {
        "1f1b"
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check_stages_per_rank(self.name(), 1)?;
        let Shape { ranks, micro_batches, .. } = shape;
        Plan::new(Stage::first(ranks).map(|stage| {
            // The last of these forwards is the first of the alternation.
            let ahead = (ranks - stage.index()).min(micro_batches);
            let m = MicroBatch::new;
            let mut row = Vec::with_capacity(2 * micro_batches);
            row.extend((0..ahead).map(|i| Compute::forward(stage, m(i))));
            for i in 0..micro_batches {
                row.push(Compute::backward(stage, m(i)));
                if i + ahead < micro_batches {
                    row.push(Compute::forward(stage, m(i + ahead)));
                }
            }
            row
        }))
    }
}

/// The entry in the list of schedules.
pub(super) const NAMED: NamedSchedule = NamedSchedule {
    name: "1f1b",
    summary: "Alternates one forward and one backward, which keeps the fewest activations.",
    tuned: true,
    make: || Box::new(OneFOneB),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
rank 1 |  .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
rank 2 |  .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn takes_fewer_micro_batches_than_ranks() {
        // Eight ranks with one micro-batch hung a peer.
        for (ranks, micro_batches) in [(8, 1), (4, 3), (1, 1), (2, 2), (4, 4)] {
            assert!(
                OneFOneB.plan(Shape::new(ranks, micro_batches)).is_ok(),
                "{ranks}x{micro_batches}"
            );
        }
    }
}
