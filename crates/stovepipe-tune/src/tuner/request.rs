//! The question: layers, ranks, and which configurations are tried.

use std::sync::Arc;

use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_schedule::Schedule;

use crate::cluster::Cluster;
use crate::error::TuneError;
use crate::profile::{LayerCost, Profile};
use crate::report::Configuration;

/// A model on a cluster, and the choices there are.
#[derive(Clone)]
pub(super) struct Request<'a> {
    pub(super) profile: &'a Profile,
    pub(super) cluster: &'a Cluster,
    pub(super) batch: usize,
    pub(super) schedules: Vec<Arc<dyn Schedule>>,
    pub(super) policies: Vec<Arc<dyn CheckpointPolicy>>,
    /// Names, as each plan has its own facts.
    pub(super) partitioners: Vec<String>,
    pub(super) micro_batches: Option<Vec<usize>>,
    pub(super) ranks: Option<Vec<usize>>,
    pub(super) stages_per_rank: Option<Vec<usize>>,
}

/// The layers' costs at the two sizes that the micro-batches have.
#[derive(Clone)]
pub(super) struct SizedCosts {
    pub(super) small: Vec<LayerCost>,
    pub(super) large: Vec<LayerCost>,
    /// How many micro-batches are of the larger size.
    pub(super) larger: usize,
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
        if self.cluster.memory.is_some() && !self.profile.knows_memory() {
            return refuse(
                "memory",
                "the profile doesn't say what layers keep, so no limit can be respected: measure where \
                 the device reports its memory, or drop the limit"
                    .to_owned(),
            );
        }
        if self.micro_batch_counts().is_empty() {
            let sizes: Vec<usize> = self.profile.sizes().collect();
            return refuse(
                "micro-batches",
                format!(
                    "no number of them cuts {} samples into sizes within the measured {sizes:?}: \
                     measure more sizes",
                    self.batch
                ),
            );
        }
        Ok(())
    }

    /// The numbers of micro-batches whose sizes are within the measured ones.
    fn micro_batch_counts(&self) -> Vec<usize> {
        let powers = || std::iter::successors(Some(1usize), |m| m.checked_mul(2));
        let asked = match &self.micro_batches {
            Some(counts) => counts.clone(),
            None => powers().take_while(|&m| m <= self.batch).collect(),
        };
        asked.into_iter().filter(|&m| self.is_measured(m)).collect()
    }

    /// Whether the sizes that so many micro-batches have are within the measured ones.
    pub(super) fn is_measured(&self, micro_batches: usize) -> bool {
        if !(1..=self.batch).contains(&micro_batches) {
            return false;
        }
        let (small, large) = sizes_of(self.batch, micro_batches);
        self.profile.at(small).is_some() && self.profile.at(large).is_some()
    }

    /// Every configuration that is asked for.
    pub(super) fn configurations(&self) -> Vec<Configuration> {
        let ranks = self.ranks.clone().unwrap_or_else(|| (1..=self.cluster.ranks).collect());
        let counts = self.micro_batch_counts();
        let mut all = Vec::new();
        for schedule in &self.schedules {
            let stages_per_rank = self
                .stages_per_rank
                .clone()
                .unwrap_or_else(|| vec![schedule.default_stages_per_rank()]);
            for &ranks in ranks.iter().filter(|&&ranks| (1..=self.cluster.ranks).contains(&ranks)) {
                for &stages_per_rank in &stages_per_rank {
                    for &micro_batches in &counts {
                        all.extend(self.policies.iter().map(|policy| Configuration {
                            schedule: Arc::clone(schedule),
                            policy: Arc::clone(policy),
                            ranks,
                            stages_per_rank,
                            micro_batches,
                        }));
                    }
                }
            }
        }
        all
    }

    /// The layers' costs at the sizes that so many micro-batches have.
    pub(super) fn costs(&self, micro_batches: usize) -> SizedCosts {
        let (small, large) = sizes_of(self.batch, micro_batches);
        let at = |samples| self.profile.at(samples).unwrap_or_default();
        SizedCosts {
            small: at(small),
            large: at(large),
            // The larger ones come first.
            larger: self.batch % micro_batches,
        }
    }
}

/// The sizes of `batch` samples in `micro_batches` micro-batches: they differ by one at most.
fn sizes_of(batch: usize, micro_batches: usize) -> (usize, usize) {
    (batch / micro_batches, batch.div_ceil(micro_batches))
}
