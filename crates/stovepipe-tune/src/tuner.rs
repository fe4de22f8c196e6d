//! The search: every configuration is cut, planned and simulated.

mod advice;
mod cut;
mod fit;
mod refusal;
mod request;

use std::sync::Arc;

use stovepipe_checkpoint::{CheckpointPolicy, PolicyFacts, policies};
use stovepipe_partition::{Partition, partitioners};
use stovepipe_schedule::{Schedule, schedules};

use self::advice::{bytes_that_help, ranks_that_help};
use self::fit::{fit, fit_cut};
use self::request::Request;
use crate::cluster::Cluster;
use crate::error::TuneError;
use crate::profile::Profile;
use crate::report::{Choice, Configuration, Rejected, Report};

/// Searches stages, micro-batches, schedule and checkpoint policy for the fastest step.
///
/// Each configuration is cut at the size that its micro-batches have, planned, and simulated with
/// the costs of that size, links included. What the ranks hold is what
/// [`Program::peak_bytes`](stovepipe_schedule::Program::peak_bytes) counts of parameters, states,
/// gradients, activations and what is needed temporarily.
///
/// By default it tries the [schedules](stovepipe_schedule::schedules()),
/// [policies](stovepipe_checkpoint::policies()) and
/// [partitioners](stovepipe_partition::partitioners()) whose entries say so: those that every stage
/// can run and that need no argument. Of numbers it tries the stages per rank that a schedule is
/// made for, every number of ranks, and powers of two as numbers of micro-batches.
#[derive(Clone)]
pub struct Tuner<'a>(Request<'a>);

impl<'a> Tuner<'a> {
    /// For the layers of a profile on the ranks of a cluster. The batch is the largest size
    /// measured.
    #[must_use]
    pub fn new(profile: &'a Profile, cluster: &'a Cluster) -> Self {
        let schedules = schedules().iter().filter(|named| named.tuned);
        Self(Request {
            profile,
            cluster,
            batch: profile.sizes().max().unwrap_or(1),
            schedules: schedules.map(|named| Arc::from(named.make())).collect(),
            policies: tuned_policies(),
            partitioners: tuned_partitioners(),
            micro_batches: None,
            ranks: None,
            stages_per_rank: None,
        })
    }

    /// Samples in a mini-batch.
    #[must_use]
    pub fn batch(mut self, samples: usize) -> Self {
        self.0.batch = samples;
        self
    }

    /// Only these schedules.
    #[must_use]
    pub fn schedules(mut self, schedules: Vec<Box<dyn Schedule>>) -> Self {
        self.0.schedules = schedules.into_iter().map(Arc::from).collect();
        self
    }

    /// Only these checkpoint policies.
    #[must_use]
    pub fn policies(mut self, policies: Vec<Box<dyn CheckpointPolicy>>) -> Self {
        self.0.policies = policies.into_iter().map(Arc::from).collect();
        self
    }

    /// Only these partitioners, by [name](stovepipe_partition::partitioner_named): each plan makes
    /// them anew with its own facts. The layers are cut by the first of them whose cut fits.
    #[must_use]
    pub fn partitioners(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.partitioners = names.into_iter().map(Into::into).collect();
        self
    }

    /// Only these numbers of micro-batches.
    #[must_use]
    pub fn micro_batches(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.0.micro_batches = Some(counts.into());
        self
    }

    /// Only these numbers of ranks, taken from the first on.
    #[must_use]
    pub fn ranks(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.0.ranks = Some(counts.into());
        self
    }

    /// Only these numbers of stages on each rank, instead of what each schedule is made for.
    #[must_use]
    pub fn stages_per_rank(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.0.stages_per_rank = Some(counts.into());
        self
    }

    /// Tries every configuration.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if something asked for makes no sense; [`TuneError::NothingFits`] if
    /// no configuration can run, with the reasons, and with what would help.
    pub fn tune(&self) -> Result<Report, TuneError> {
        let request = &self.0;
        request.check()?;
        let mut report = Report { choices: Vec::new(), rejected: Vec::new() };
        for configuration in request.configurations() {
            let fitted = fit(request, &configuration);
            match fitted.and_then(|fitted| fitted.map(|f| f.price(request)).transpose()) {
                Ok(choice) => report.choices.extend(choice),
                Err(refusal) => {
                    let (reason, missing) = (refusal.reason, refusal.missing);
                    report.rejected.push(Rejected { configuration, reason, missing });
                }
            }
        }
        report.rejected.sort_by_key(|rejected| rejected.missing.unwrap_or(u64::MAX));
        if report.choices.is_empty() {
            let rejected = report.rejected;
            let (more, ranks) = (bytes_that_help(request, &rejected), ranks_that_help(request));
            return Err(TuneError::NothingFits { rejected, more, ranks });
        }
        report.sort();
        Ok(report)
    }

    /// Predicts a configuration with a cut of one's own, whether or not it fits into memory.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if something asked for makes no sense, or can't be planned and
    /// simulated.
    pub fn predict(
        &self,
        configuration: &Configuration,
        partition: &Partition,
    ) -> Result<Choice, TuneError> {
        let request = &self.0;
        request.check()?;
        let refuse = |reason| TuneError::Request { what: "configuration", reason };
        let layers = request.profile.layers().len();
        if partition.layers() != layers {
            let found = partition.layers();
            return Err(refuse(format!("it cuts {found} layers, the profile has {layers}")));
        }
        if configuration.ranks > request.cluster.ranks {
            let (wanted, has) = (configuration.ranks, request.cluster.ranks);
            return Err(refuse(format!("it needs {wanted} ranks, there are {has}")));
        }
        let micro_batches = configuration.micro_batches;
        if !request.is_measured(micro_batches) {
            return Err(refuse(format!(
                "{micro_batches} micro-batches of {} samples have sizes outside the measured ones",
                request.batch
            )));
        }
        let plan = configuration.schedule.plan(configuration.shape());
        let plan = plan.map_err(|error| refuse(error.to_string()))?;
        let costs = request.costs(micro_batches);
        let fitted = fit_cut(request, configuration, &plan, costs, partition.clone());
        let priced = fitted.and_then(|fitted| fitted.price(request));
        priced.map_err(|refusal| refuse(refusal.reason))
    }
}

/// The policies that say that they are to be tried. They take no argument and need no facts.
fn tuned_policies() -> Vec<Arc<dyn CheckpointPolicy>> {
    let tuned = policies().iter().filter(|named| named.tuned);
    tuned
        .filter_map(|named| named.make(None, &PolicyFacts::default()).ok())
        .map(Arc::from)
        .collect()
}

/// The partitioners that say that they are to be tried.
fn tuned_partitioners() -> Vec<String> {
    let tuned = partitioners().iter().filter(|named| named.tuned);
    tuned.map(|named| named.name.to_owned()).collect()
}
