//! DualPipeV: DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) cut in half, as its authors'
//! code and Sea AI Lab describe it: two stages on each rank in the shape of a V, each parameter
//! stored once.

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::row::Row;
use crate::schedules::row::Way::{Down, Up};
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::shape::Shape;

/// Rank r holds stages r and 2P−1−r; in the steady state a forward on one way is paired with a
/// backward on the other, whose communication can hide behind the other's computation.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
/// rank 1 |  .  1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3
/// ```
///
/// The rank runs the two halves of a pair one after the other. With F = I = W for each stage it
/// idles P−1 of these times, and keeps 2P+1 stages' activations. Two stages per rank and M ≥ 2P.
/// Only the few backwards that others wait for are split; it needs stages that can do that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DualPipeV;

impl Schedule for DualPipeV {
    fn name(&self) -> &str {
        "dualpipe-v"
    }

    fn default_stages_per_rank(&self) -> usize {
        2
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check_stages_per_rank(self.name(), 2)?;
        shape.check_actions(3)?;
        let Shape { ranks, micro_batches, .. } = shape;
        if micro_batches < 2 * ranks {
            return Err(PlanError::Unsupported {
                schedule: self.name().to_owned(),
                shape,
                supported: format!(
                    "two stages per rank and at least two micro-batches per rank, here {}",
                    2 * ranks
                ),
            });
        }
        Plan::new((0..ranks).map(|rank| row(rank, ranks, micro_batches)))
    }
}

/// The entry in the list of schedules.
pub(super) const NAMED: NamedSchedule = NamedSchedule {
    name: "dualpipe-v",
    summary: "Pairs forwards one way with backwards the other way on the same V, with split backwards.",
    tuned: false,
    make: || Box::new(DualPipeV),
};

/// The row of one rank.
fn row(rank: usize, ranks: usize, micro_batches: usize) -> Vec<Compute> {
    let after = ranks - 1 - rank;
    let mut row = Row::new(rank, ranks, micro_batches);
    for _ in 0..2 * after {
        row.forward(Down);
    }
    for _ in 0..=rank {
        row.forward(Down);
        row.forward(Up);
    }
    for _ in 0..after {
        row.input(Up);
        row.weight(None);
        row.forward(Up);
    }
    for _ in 0..micro_batches - 2 * ranks + rank + 1 {
        row.forward(Down);
        row.backward(Up);
        row.forward(Up);
        row.backward(Down);
    }
    for _ in 0..after {
        row.backward(Up);
        row.forward(Up);
        row.backward(Down);
    }
    // In the second half of the drain others wait for input gradients only.
    for i in 0..2 * (rank + 1) {
        let way = if i % 2 == 0 { Up } else { Down };
        if i <= rank { row.backward(way) } else { row.input(way) }
    }
    for _ in 0..after {
        row.weight(None);
        row.input(Down);
    }
    while row.weight(None) {}
    row.into_actions()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan = DualPipeV.plan(Shape::new(2, 4).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
rank 1 |  .  1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn refuses_what_it_cannot_do() {
        let error = DualPipeV.plan(Shape::new(3, 8)).expect_err("one stage per rank");
        assert!(error.to_string().contains("2 stages per rank"), "{error}");
        let error = DualPipeV.plan(Shape::new(3, 5).with_stages_per_rank(2)).expect_err("too few");
        assert!(
            error.to_string().contains("at least two micro-batches per rank, here 6"),
            "{error}"
        );
    }
}
