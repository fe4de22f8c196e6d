//! What the tuner found.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_partition::Partition;
use stovepipe_schedule::{Schedule, Shape};

/// One way to run a pipeline, but for its cut. It is written with the names of its schedule and policy.
#[derive(Clone, Serialize)]
#[non_exhaustive]
pub struct Configuration {
    /// The schedule.
    #[serde(serialize_with = "schedule_name")]
    pub schedule: Arc<dyn Schedule>,
    /// The checkpoint policy.
    #[serde(serialize_with = "policy_name")]
    pub policy: Arc<dyn CheckpointPolicy>,
    /// Ranks used.
    pub ranks: usize,
    /// Stages on each rank.
    pub chunks: usize,
    /// Micro-batches in a mini-batch.
    pub micro_batches: usize,
}

fn schedule_name<S: Serializer>(schedule: &Arc<dyn Schedule>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(schedule.name())
}

fn policy_name<S: Serializer>(
    policy: &Arc<dyn CheckpointPolicy>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_str(policy.name())
}

impl Configuration {
    /// A schedule and a policy on so many ranks, stages on each, and micro-batches.
    #[must_use]
    pub fn new(
        schedule: impl Schedule + 'static,
        policy: impl CheckpointPolicy + 'static,
        shape: Shape,
    ) -> Self {
        let Shape { ranks, chunks, micro_batches, .. } = shape;
        Self {
            schedule: Arc::new(schedule),
            policy: Arc::new(policy),
            ranks,
            chunks,
            micro_batches,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape::new(self.ranks, self.micro_batches).with_chunks(self.chunks)
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, policy, ranks, chunks, micro_batches } = self;
        let count = |n: &usize, one: &str, several: &str| {
            format!("{n} {}", if *n == 1 { one } else { several })
        };
        write!(
            f,
            "{} on {} with {} each, {}, recomputation {}",
            schedule.name(),
            count(ranks, "rank", "ranks"),
            count(chunks, "stage", "stages"),
            count(micro_batches, "micro-batch", "micro-batches"),
            policy.name()
        )
    }
}

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Configuration({self})")
    }
}

/// A configuration that can run, and what it would take.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// What was chosen.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// The layers of each stage, written as their numbers.
    #[serde(rename = "sizes")]
    pub partition: Partition,
    /// Simulated time of a step.
    pub seconds: f64,
    /// Idle time divided by total time.
    pub bubble: f64,
    /// The most bytes that each rank holds at once, micro-batches of two sizes counted at the larger;
    /// none if the profile doesn't know.
    pub memory: Option<Vec<u64>>,
}

impl Choice {
    /// The most bytes that any rank holds at once, if the profile knows.
    #[must_use]
    pub fn most_memory(&self) -> Option<u64> {
        self.memory.iter().flatten().copied().max()
    }
}

/// A configuration that can't run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Rejected {
    /// What was tried.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// Why it can't run: how many bytes are missing where, or what the schedule can't do.
    pub reason: String,
    /// The bytes that are missing on the rank that lacks most, where memory is the reason.
    pub missing: Option<u64>,
}

/// Everything that was tried.
#[derive(Debug, Clone, Serialize)]
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
