//! The numbers that a schedule plans for.

use std::fmt;

use serde::{Deserialize, Serialize};

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
