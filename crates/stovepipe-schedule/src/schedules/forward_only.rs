//! Forward-only: evaluation and inference.

use crate::{Compute, MicroBatch, Plan, PlanError, Schedule, Shape, Stage};

/// Streams the micro-batches through the stages without a backward.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2  .
/// rank 1 |  .  1F0 1F1 1F2
/// ```
///
/// Nothing is kept. With several chunks, stage `s` lives on rank `s % P`, as in the interleaved
/// schedules, and each chunk takes up to P micro-batches in turn. Any P, V and M.
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
        let Shape { ranks, chunks, micro_batches } = shape;
        let rounds = micro_batches.div_ceil(ranks);
        Plan::new((0..ranks).map(|rank| {
            let mut row = Vec::with_capacity(chunks * micro_batches);
            for round in 0..rounds {
                for chunk in 0..chunks {
                    let stage = Stage::new(chunk * ranks + rank);
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
