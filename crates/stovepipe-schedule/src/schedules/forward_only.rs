//! Forward-only: evaluation and inference.

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::shape::Shape;

/// Streams the micro-batches through the stages without a backward.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2  .
/// rank 1 |  .  1F0 1F1 1F2
/// ```
///
/// Nothing is kept. Each rank idles (P−1)F, the time in which a pipeline fills and drains. With
/// several stages on a rank, stage `s` lives on rank `s % P`, as in the interleaved schedules. Each
/// of them takes up to P micro-batches in turn. With F for a whole rank and P dividing M, each rank
/// idles (P−1)F/V. Any P, V and M.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForwardOnly;

impl ForwardOnly {
    /// A forward-only plan on the placement of another plan, so that a pipeline laid out for
    /// training also evaluates.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`]; none for a `training` plan with at least one micro-batch asked for.
    pub fn on_placement_of(training: &Plan, micro_batches: usize) -> Result<Plan, PlanError> {
        if micro_batches == 0 {
            return Err(PlanError::EmptyShape { what: "micro-batches" });
        }
        let rounds = micro_batches.div_ceil(training.ranks());
        Plan::new((0..training.ranks()).map(|rank| {
            let stages = training.stages_of(rank);
            let round = |r: usize| {
                let first = r * training.ranks();
                first..(first + training.ranks()).min(micro_batches)
            };
            (0..rounds)
                .flat_map(|r| stages.iter().map(move |&stage| (r, stage)))
                .flat_map(|(r, stage)| {
                    round(r).map(move |m| Compute::forward(stage, MicroBatch::new(m)))
                })
                .collect()
        }))
    }
}

impl Schedule for ForwardOnly {
    fn name(&self) -> &str {
        "forward-only"
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check()?;
        let Shape { ranks, stages_per_rank, micro_batches } = shape;
        let rounds = micro_batches.div_ceil(ranks);
        Plan::new((0..ranks).map(|rank| {
            let mut row = Vec::with_capacity(stages_per_rank * micro_batches);
            for round in 0..rounds {
                for local in 0..stages_per_rank {
                    let stage = Stage::new(local * ranks + rank);
                    let end = ((round + 1) * ranks).min(micro_batches);
                    row.extend(
                        (round * ranks..end).map(|m| Compute::forward(stage, MicroBatch::new(m))),
                    );
                }
            }
            row
        }))
    }
}

/// The entry in the list of schedules.
pub(super) const NAMED: NamedSchedule = NamedSchedule {
    name: "forward-only",
    summary: "Runs forwards alone: evaluation and inference.",
    tuned: false,
    make: || Box::new(ForwardOnly),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GPipe, Interleaved1F1B};

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan = ForwardOnly.plan(Shape::new(2, 3)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2  .
rank 1 |  .  1F0 1F1 1F2
";
        assert_eq!(plan.to_string(), grid);
        let plan = ForwardOnly.plan(Shape::new(2, 3).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 2F0 2F1 0F2  .  2F2  .
rank 1 |  .  1F0 1F1 3F0 3F1 1F2  .  3F2
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn takes_the_placement_of_a_training_plan() {
        for (schedule, stages_per_rank) in
            [(&GPipe::default() as &dyn Schedule, 1), (&Interleaved1F1B, 2)]
        {
            let training = schedule
                .plan(Shape::new(3, 6).with_stages_per_rank(stages_per_rank))
                .expect("a plan");
            let plan = ForwardOnly::on_placement_of(&training, 4).expect("a plan");
            assert_eq!(plan.placement(), training.placement());
            assert_eq!(
                plan,
                ForwardOnly
                    .plan(Shape::new(3, 4).with_stages_per_rank(stages_per_rank))
                    .expect("a plan")
            );
        }
        let training = GPipe::default().plan(Shape::new(2, 2)).expect("a plan");
        assert!(ForwardOnly::on_placement_of(&training, 0).is_err());
    }
}
