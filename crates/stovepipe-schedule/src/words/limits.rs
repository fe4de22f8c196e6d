//! Refuses shapes that no plan can have, or that one schedule can't plan for.

use crate::words::error::PlanError;
use crate::words::shape::{MAX_ACTIONS, Shape};

impl Shape {
    /// Checks what holds for every schedule: nothing is zero, and the plan isn't absurdly large.
    /// Schedules call this first.
    ///
    /// # Errors
    ///
    /// [`PlanError::EmptyShape`] or [`PlanError::TooLarge`].
    pub fn check(&self) -> Result<(), PlanError> {
        // A training plan has at least a forward and a backward per stage and micro-batch.
        self.check_actions(2)
    }

    /// As [`Shape::check`], for schedules with so many actions per stage and micro-batch: 3 where
    /// backwards are split.
    ///
    /// # Errors
    ///
    /// As [`Shape::check`].
    pub fn check_actions(&self, per_pair: usize) -> Result<(), PlanError> {
        let Self { ranks, stages_per_rank, micro_batches } = *self;
        for (count, what) in [
            (ranks, "ranks"),
            (stages_per_rank, "stages_per_rank"),
            (micro_batches, "micro-batches"),
        ] {
            if count == 0 {
                return Err(PlanError::EmptyShape { what });
            }
        }
        [ranks, stages_per_rank, micro_batches]
            .iter()
            .try_fold(per_pair, |product, &n| product.checked_mul(n))
            .filter(|&actions| actions <= MAX_ACTIONS)
            .map(drop)
            .ok_or(PlanError::TooLarge { shape: *self })
    }

    /// Refuses another number of stages per rank than `stages_per_rank`, for schedules that know
    /// only one.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unsupported`], and as [`Shape::check`].
    pub fn check_stages_per_rank(
        &self,
        schedule: &str,
        stages_per_rank: usize,
    ) -> Result<(), PlanError> {
        self.check()?;
        if self.stages_per_rank == stages_per_rank {
            return Ok(());
        }
        let stages = if stages_per_rank == 1 {
            "one stage".to_owned()
        } else {
            format!("{stages_per_rank} stages")
        };
        Err(PlanError::Unsupported {
            schedule: schedule.to_owned(),
            shape: *self,
            supported: format!("{stages} per rank ({stages_per_rank} stages per rank)"),
        })
    }
}
