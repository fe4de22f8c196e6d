//! ZB-H1: 1F1B whose weight gradients fill the bubble (arXiv 2401.10241).

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::schedule::Schedule;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::shape::Shape;

/// 1F1B with the backward split. `I` runs at once, because the rank before waits for it. `W` runs
/// later, the later the higher the rank, so that all ranks keep as much as 1F1B's first.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2  .   .  0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
/// rank 1 |  .  1F0 1F1  .  1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
/// rank 2 |  .   .  2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
/// ```
///
/// With uniform costs, M ≥ P and W no longer than F and I, each rank idles (P−1)(F+I−W) (Zero
/// Bubble Pipeline Parallelism, section 2.3), and keeps P micro-batches. One stage per rank, any P
/// and M. It needs stages that can split their backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZbH1;

impl Schedule for ZbH1 {
    fn name(&self) -> &str {
        "zb-h1"
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check_stages_per_rank(self.name(), 1)?;
        shape.check_actions(3)?;
        let Shape { ranks, micro_batches, .. } = shape;
        Plan::new(Stage::first(ranks).map(|stage| {
            let rank = stage.index();
            let action = |kind, m| Compute::new(kind, stage, MicroBatch::new(m));
            let ahead = (ranks - rank).min(micro_batches);
            let mut row = Vec::with_capacity(3 * micro_batches);
            row.extend((0..ahead).map(|m| action(ComputeKind::Forward, m)));
            for m in 0..micro_batches {
                row.push(action(ComputeKind::BackwardInput, m));
                // `rank` weight gradients lag behind: with the forwards ahead, P micro-batches.
                if let Some(lagging) = m.checked_sub(rank) {
                    row.push(action(ComputeKind::BackwardWeight, lagging));
                }
                if m + ahead < micro_batches {
                    row.push(action(ComputeKind::Forward, m + ahead));
                }
            }
            let left = micro_batches.saturating_sub(rank)..micro_batches;
            row.extend(left.map(|m| action(ComputeKind::BackwardWeight, m)));
            row
        }))
    }
}

/// The entry in the list of schedules.
pub(super) const NAMED: NamedSchedule = NamedSchedule {
    name: "zb-h1",
    summary: "Runs 1F1B with split backwards, whose weight gradients fill the bubble.",
    tuned: false,
    make: || Box::new(ZbH1),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan = ZbH1.plan(Shape::new(3, 4)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2  .   .  0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
rank 1 |  .  1F0 1F1  .  1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
rank 2 |  .   .  2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn refuses_several_stages_per_rank() {
        let error =
            ZbH1.plan(Shape::new(3, 4).with_stages_per_rank(2)).expect_err("two stages per rank");
        assert!(error.to_string().contains("one stage per rank"), "{error}");
    }
}
