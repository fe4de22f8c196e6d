//! ZB-V: two stages on each rank in the shape of a V, with split backwards (arXiv 2401.10241,
//! section 6).

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::row::Row;
use crate::schedules::row::Way::{Down, Up};
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::shape::Shape;

/// Rank r holds stage r on the way down and stage 2P−1−r on the way up, so that the last rank turns
/// a micro-batch around at once. Weight gradients fill what is left of the bubble.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2  .
/// rank 1 |  .  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
/// ```
///
/// In the order of a rank (Zero Bubble Pipeline Parallelism, section 6):
///
/// 1. forwards down until the first comes back up;
/// 2. forwards on both ways in turn;
/// 3. forwards up with their backwards;
/// 4. over and over, one micro-batch down, one backward of each way, one micro-batch up;
/// 5. the input gradients that others wait for, then the weight gradients.
///
/// With F = I = W for each stage and M ≥ 2P−1, each rank idles P−1 of these times and keeps 2P
/// stages' activations, as much as 1F1B on its first rank. Two stages per rank, any P and M up to a
/// few thousand ranks. It needs stages that can split their backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZbV;

impl Schedule for ZbV {
    fn name(&self) -> &str {
        "zb-v"
    }

    fn default_stages_per_rank(&self) -> usize {
        2
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check_stages_per_rank(self.name(), 2)?;
        shape.check_actions(3)?;
        let Shape { ranks, micro_batches, .. } = shape;
        // A short mini-batch is a long one whose last micro-batches are left out.
        let full = micro_batches.max(2 * ranks - 1);
        if (Shape { micro_batches: full, ..shape }).check_actions(3).is_err() {
            return Err(PlanError::Unsupported {
                schedule: self.name().to_owned(),
                shape,
                supported: format!(
                    "so many ranks with {full} micro-batches or more, which is too large a plan"
                ),
            });
        }
        Plan::new((0..ranks).map(|rank| row(rank, ranks, micro_batches, full)))
    }
}

/// The entry in the list of schedules.
pub(super) const NAMED: NamedSchedule = NamedSchedule {
    name: "zb-v",
    summary: "Places two stages on each rank in the shape of a V, with split backwards.",
    tuned: false,
    make: || Box::new(ZbV),
};

/// The row of one rank, written for `full` micro-batches, of which the last may not be there. The
/// numbers are those of the list above.
fn row(rank: usize, ranks: usize, micro_batches: usize, full: usize) -> Vec<Compute> {
    let mut row = Row::new(rank, ranks, micro_batches);
    // 1
    for _ in 0..2 * (ranks - rank) - 1 {
        row.forward(Down);
    }
    // 2
    for _ in 0..rank {
        row.forward(Up);
        row.forward(Down);
    }
    // 3
    for _ in rank..ranks {
        row.forward(Up);
        row.input(Up);
        row.weight(Some(Up));
    }
    // 4
    while row.forwards(Up) < full {
        if row.forwards(Down) < full {
            row.forward(Down);
        }
        row.input(Down);
        row.weight(Some(Down));
        row.forward(Up);
        row.input(Up);
        row.weight(Some(Up));
    }
    // 5
    for _ in 0..rank {
        row.input(Down);
        row.input(Up);
    }
    for _ in rank..ranks {
        row.input(Down);
        row.weight(Some(Down));
    }
    while row.weight(Some(Up)) || row.weight(Some(Down)) {}
    row.into_actions()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan = ZbV.plan(Shape::new(2, 3).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2  .
rank 1 |  .  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn takes_fewer_micro_batches_than_fill_the_v() {
        let plan = ZbV.plan(Shape::new(2, 2).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1  .  3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0  .  0I1 0W1
rank 1 |  .  1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1  .
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn refuses_other_numbers_of_stages_per_rank() {
        let error = ZbV.plan(Shape::new(3, 4)).expect_err("one stage per rank");
        assert!(error.to_string().contains("2 stages per rank"), "{error}");
    }
}
