//! The tuner's findings.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_partition::Partition;
use stovepipe_schedule::{Schedule, Shape};

/// One way to run a pipeline, except its cut. It is written with the names of its schedule and
/// policy.
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
    pub stages_per_rank: usize,
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
        let Shape { ranks, stages_per_rank, micro_batches, .. } = shape;
        Self {
            schedule: Arc::new(schedule),
            policy: Arc::new(policy),
            ranks,
            stages_per_rank,
            micro_batches,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape::new(self.ranks, self.micro_batches).with_stages_per_rank(self.stages_per_rank)
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, policy, ranks, stages_per_rank, micro_batches } = self;
        let count = |n: &usize, one: &str, several: &str| {
            format!("{n} {}", if *n == 1 { one } else { several })
        };
        write!(
            f,
            "{} on {} with {} each, {}, recomputation {}",
            schedule.name(),
            count(ranks, "rank", "ranks"),
            count(stages_per_rank, "stage", "stages"),
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

/// A configuration that can run, and its price.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// The configuration.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// The layers of each stage, written as their numbers.
    #[serde(rename = "sizes")]
    pub partition: Partition,
    /// Simulated time of a step.
    pub seconds: f64,
    /// Idle time divided by total time.
    pub bubble: f64,
    /// The seconds of a step in which each rank doesn't compute.
    pub idle: Vec<f64>,
    /// The most samples whose activations a rank holds at once; a stage counts as its part of the
    /// rank.
    pub kept_samples: f64,
    /// The most bytes that each rank holds at once, micro-batches of two sizes counted at the
    /// larger; none if the profile doesn't know.
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
    /// The configuration that was tried.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// Why it can't run: how many bytes are missing where, or what the schedule can't do.
    pub reason: String,
    /// The bytes that are missing on the rank that lacks most, where memory is the reason.
    pub missing: Option<u64>,
}

/// A configuration that wasn't simulated, because it can't be the fastest.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Bounded {
    /// The configuration, whether or not it fits.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// A step takes at least so many seconds.
    pub at_least: f64,
}

/// Everything that was tried.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The choices that can run. First come those that are as fast as the fastest for all that can
    /// be [told](Self::TOLERANCE), the simplest and leanest first, then the others by time.
    pub choices: Vec<Choice>,
    /// The configurations that can't.
    pub rejected: Vec<Rejected>,
    /// The configurations that weren't simulated, those that might be fastest first.
    pub bounded: Vec<Bounded>,
}

impl Report {
    /// Predictions that differ by no more than this part can't be told apart. Among such
    /// configurations the one with the fewest ranks, stages and samples kept comes first: it has
    /// the fewest messages, and activations that a backward needs soon are still in the cache.
    pub const TOLERANCE: f64 = 0.02;

    /// Puts the choices in order.
    pub(crate) fn sort(&mut self) {
        self.choices.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let fastest = self.choices.first().map_or(0.0, |choice| choice.seconds);
        let limit = fastest * (1.0 + Self::TOLERANCE);
        let level = self.choices.partition_point(|choice| choice.seconds <= limit);
        self.choices[..level].sort_by(|a, b| {
            let sizes = |choice: &Choice| {
                (choice.configuration.ranks, choice.configuration.stages_per_rank)
            };
            let by_sizes = sizes(a).cmp(&sizes(b));
            by_sizes.then(a.kept_samples.total_cmp(&b.kept_samples))
        });
    }

    /// The choice to run: the fastest, or a simpler one as fast for all that can be told.
    ///
    /// # Panics
    ///
    /// Never: a report has a choice.
    #[must_use]
    pub fn best(&self) -> &Choice {
        &self.choices[0]
    }

    /// The part by which a choice takes longer than the fastest: 0.1 for 10%.
    #[must_use]
    pub fn slower(&self, choice: &Choice) -> f64 {
        let fastest =
            self.choices.iter().map(|choice| choice.seconds).fold(f64::INFINITY, f64::min);
        if fastest > 0.0 { choice.seconds / fastest - 1.0 } else { 0.0 }
    }
}
