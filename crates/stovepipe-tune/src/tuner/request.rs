//! The question: layers, ranks, and which configurations are tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_schedule::{Schedule, Shape};

use crate::cluster::Cluster;
use crate::error::TuneError;
use crate::profile::Profile;
use crate::report::Configuration;

/// More samples than any mini-batch has.
const MAX_BATCH: usize = 1 << 40;

/// A function that is told how many shapes are settled, and how many there are.
pub(super) type Progress = dyn Fn(usize, usize) + Send + Sync;

/// A model on a cluster, and the choices there are.
#[derive(Clone)]
pub(super) struct Request<'a> {
    pub(super) profile: &'a Profile,
    pub(super) cluster: &'a Cluster,
    pub(super) batch: usize,
    /// None for those that are tried by default.
    pub(super) schedules: Option<Vec<Arc<dyn Schedule>>>,
    pub(super) policies: Vec<Arc<dyn CheckpointPolicy>>,
    /// Names, as each plan has its own facts; none for those that are tried by default, whose cuts
    /// are improved.
    pub(super) partitioners: Option<Vec<String>>,
    pub(super) micro_batches: Option<Vec<usize>>,
    pub(super) ranks: Option<Vec<usize>>,
    pub(super) stages_per_rank: Option<Vec<usize>>,
    /// Whether everything is simulated, also what can't be the fastest.
    pub(super) exhaustive: bool,
    pub(super) progress: Option<Arc<Progress>>,
}

/// A schedule and a shape, which make a plan. The policies share it.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) schedule: Arc<dyn Schedule>,
    pub(super) shape: Shape,
}

impl Group {
    /// The configuration with a policy.
    pub(super) fn with(&self, policy: &Arc<dyn CheckpointPolicy>) -> Configuration {
        let Shape { ranks, stages_per_rank, micro_batches } = self.shape;
        let (schedule, policy) = (Arc::clone(&self.schedule), Arc::clone(policy));
        Configuration { schedule, policy, ranks, stages_per_rank, micro_batches }
    }
}

impl Request<'_> {
    /// Refuses what makes no sense.
    pub(super) fn check(&self) -> Result<(), TuneError> {
        let refuse = |what, reason: String| Err(TuneError::Request { what, reason });
        if let Some((what, reason)) = self.cluster.fault() {
            return refuse(what, reason);
        }
        if self.batch == 0 {
            return refuse("batch", "it has no samples: give at least 1".to_owned());
        }
        if self.batch > MAX_BATCH {
            let reason =
                format!("{} samples are more than any: give {MAX_BATCH} at most", self.batch);
            return refuse("batch", reason);
        }
        if self.cluster.limits_memory() && !self.profile.knows_memory() {
            return refuse(
                "memory",
                "the profile doesn't say what layers keep, so no limit can be respected: measure where \
                 the device reports its memory, or drop the limit"
                    .to_owned(),
            );
        }
        for (what, counts) in [
            ("ranks", &self.ranks),
            ("stages per rank", &self.stages_per_rank),
            ("micro-batches", &self.micro_batches),
        ] {
            let Some(counts) = counts else { continue };
            if counts.is_empty() || counts.contains(&0) {
                return refuse(what, "there are none: give at least 1".to_owned());
            }
        }
        let has = self.cluster.ranks;
        if let Some(more) = self.ranks.iter().flatten().find(|&&ranks| ranks > has) {
            return refuse(
                "ranks",
                format!("{more} are asked for, there are {has}: ask for fewer"),
            );
        }
        Ok(())
    }

    /// Whether the sizes that so many micro-batches have are within the measured ones.
    pub(super) fn is_measured(&self, micro_batches: usize) -> bool {
        if !(1..=self.batch).contains(&micro_batches) {
            return false;
        }
        let (small, large) = self.sizes(micro_batches);
        let mut measured = self.profile.sizes();
        let least = measured.next().unwrap_or(usize::MAX);
        let most = measured.last().unwrap_or(least);
        least <= small && large <= most
    }

    /// The sizes of the batch in so many micro-batches: they differ by one at most.
    pub(super) fn sizes(&self, micro_batches: usize) -> (usize, usize) {
        (self.batch / micro_batches, self.batch.div_ceil(micro_batches))
    }

    /// Whether the numbers that plans are made for were asked for, so that those which can't be
    /// are to be told.
    pub(super) fn asks_for_shapes(&self) -> bool {
        self.schedules.is_some() || self.micro_batches.is_some() || self.stages_per_rank.is_some()
    }

    /// The numbers of micro-batches that are tried on so many ranks: divisors of the batch, which
    /// make them all of one size, and multiples of the ranks, which some schedules like best.
    fn micro_batch_counts(&self, divisors: &[usize], ranks: usize) -> Vec<usize> {
        let counts: BTreeSet<usize> = match &self.micro_batches {
            Some(counts) => counts.iter().copied().collect(),
            None => {
                let multiples = std::iter::successors(Some(ranks), |m| m.checked_mul(2));
                let multiples = multiples.take_while(|&m| m <= self.batch);
                divisors.iter().copied().chain(multiples).collect()
            }
        };
        counts.into_iter().filter(|&m| self.is_measured(m)).collect()
    }

    /// The numbers of stages per rank that are tried with a schedule.
    fn stages_per_rank(&self, schedule: &dyn Schedule) -> Vec<usize> {
        /// A schedule of several stages tries so many.
        const SEVERAL: [usize; 3] = [2, 3, 4];
        match (&self.stages_per_rank, schedule.default_stages_per_rank()) {
            (Some(asked), _) => asked.clone(),
            (None, 1) => vec![1],
            (None, default) => {
                BTreeSet::from_iter(SEVERAL.into_iter().chain([default])).into_iter().collect()
            }
        }
    }

    /// Every shape of every one of these schedules that the layers suffice for.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if there is none.
    pub(super) fn groups(&self, schedules: &[Arc<dyn Schedule>]) -> Result<Vec<Group>, TuneError> {
        let layers = self.profile.layers().len();
        let refuse = |what, reason: String| Err(TuneError::Request { what, reason });
        let divisors: Vec<usize> = divisors(self.batch);
        let ranks = self.ranks.clone().unwrap_or_else(|| (1..=self.cluster.ranks).collect());
        let mut groups = Vec::new();
        let mut measured = false;
        for &ranks in &ranks {
            let counts = self.micro_batch_counts(&divisors, ranks);
            measured |= !counts.is_empty();
            for schedule in schedules {
                for stages_per_rank in self.stages_per_rank(&**schedule) {
                    if ranks.saturating_mul(stages_per_rank) > layers {
                        continue;
                    }
                    groups.extend(counts.iter().map(|&micro_batches| Group {
                        schedule: Arc::clone(schedule),
                        shape:
                            Shape::new(ranks, micro_batches).with_stages_per_rank(stages_per_rank),
                    }));
                }
            }
        }
        let sizes: Vec<usize> = self.profile.sizes().collect();
        if !measured {
            return refuse(
                "micro-batches",
                format!(
                    "no number of them cuts {} samples into sizes within the measured {sizes:?}: \
                     measure more sizes",
                    self.batch
                ),
            );
        }
        if groups.is_empty() {
            let reason = format!(
                "{layers} layers are too few for as many stages as are asked for: ask for fewer \
                 ranks, fewer stages per rank, or another schedule"
            );
            return refuse("stages", reason);
        }
        Ok(groups)
    }
}

/// The divisors of a number, ascending.
fn divisors(number: usize) -> Vec<usize> {
    let small = (1..).take_while(|d| d * d <= number).filter(|d| number.is_multiple_of(*d));
    let found: BTreeSet<usize> = small.flat_map(|d| [d, number / d]).collect();
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_found_once() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(96), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]);
        assert_eq!(divisors(97), [1, 97]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
    }
}
