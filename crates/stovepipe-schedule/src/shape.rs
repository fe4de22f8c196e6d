//! The numbers a schedule is planned for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PlanError;

/// How many ranks, stages per rank and micro-batches a plan is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Workers with a device each.
    pub ranks: usize,
    /// Stages on each rank; 1 unless the schedule interleaves.
    pub stages_per_rank: usize,
    /// Slices of the mini-batch.
    pub micro_batches: usize,
}

/// A plan holds at most this many compute actions.
pub const MAX_ACTIONS: usize = 100_000_000;

impl Shape {
    /// One stage on each rank.
    #[must_use]
    pub fn new(ranks: usize, micro_batches: usize) -> Self {
        Self { ranks, stages_per_rank: 1, micro_batches }
    }

    /// `stages_per_rank` stages on each rank.
    #[must_use]
    pub fn with_stages_per_rank(self, stages_per_rank: usize) -> Self {
        Self { stages_per_rank, ..self }
    }

    /// Stages in all.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.ranks * self.stages_per_rank
    }

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

    /// Refuses another number of stages per rank than `stages_per_rank`, for schedules that know only one.
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

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        write!(f, "{} rank{}", self.ranks, plural(self.ranks))?;
        if self.stages_per_rank != 1 {
            write!(f, ", {} stages on each", self.stages_per_rank)?;
        }
        write!(f, ", {} micro-batch", self.micro_batches)?;
        f.write_str(if self.micro_batches == 1 { "" } else { "es" })
    }
}
