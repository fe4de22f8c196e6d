//! What the tuner found.

use std::fmt;

use serde::Serialize;

/// A combination that can run, and what it would take.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// The schedule's name.
    pub schedule: String,
    /// The checkpoint policy's name.
    pub policy: String,
    /// Ranks used.
    pub ranks: usize,
    /// Stages on each rank.
    pub chunks: usize,
    /// Micro-batches in a mini-batch.
    pub micro_batches: usize,
    /// Layers in each stage.
    pub sizes: Vec<usize>,
    /// Simulated time of a step.
    pub seconds: f64,
    /// Idle time divided by total time.
    pub bubble: f64,
    /// The most bytes that each rank holds at once, micro-batches of two sizes counted at the larger;
    /// none if the profile doesn't know.
    pub memory: Option<Vec<u64>>,
}

/// A combination that can't run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rejected {
    /// The schedule's name.
    pub schedule: String,
    /// The checkpoint policy's name.
    pub policy: String,
    /// Ranks it was tried on.
    pub ranks: usize,
    /// Stages on each rank.
    pub chunks: usize,
    /// Micro-batches in a mini-batch.
    pub micro_batches: usize,
    /// Why it can't run: how many bytes are missing where, or what the schedule can't do.
    pub reason: String,
    /// The bytes that are missing on the rank that lacks most, where memory is the reason.
    pub missing: Option<u64>,
}

/// Everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What can run, the fastest first; of equally fast ones the one with the fewest ranks, then with
    /// the least memory.
    pub choices: Vec<Choice>,
    /// What can't.
    pub rejected: Vec<Rejected>,
}

impl Report {
    /// The fastest.
    ///
    /// # Panics
    ///
    /// Never: a report has a choice.
    #[must_use]
    pub fn best(&self) -> &Choice {
        &self.choices[0]
    }

    /// How much longer than the best a choice takes: 0.1 for 10%.
    #[must_use]
    pub fn slower(&self, choice: &Choice) -> f64 {
        if self.best().seconds > 0.0 { choice.seconds / self.best().seconds - 1.0 } else { 0.0 }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, policy, ranks, chunks, micro_batches, .. } = self;
        let count = |n: &usize, what: &str| format!("{n} {what}{}", if *n == 1 { "" } else { "s" });
        write!(f, "{schedule} on {} with {} each, ", count(ranks, "rank"), count(chunks, "stage"))?;
        let micro_batches = if *micro_batches == 1 {
            "1 micro-batch".to_owned()
        } else {
            format!("{micro_batches} micro-batches")
        };
        write!(f, "{micro_batches}, recomputation {policy}")
    }
}
