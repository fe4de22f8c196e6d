//! The tuner: what is asked, and the answer.

mod advice;
mod bound;
mod cut;
mod fit;
mod price;
mod refine;
mod refusal;
mod request;
mod room;
mod search;
mod sized;

use std::sync::Arc;

use stovepipe_checkpoint::{CheckpointPolicy, PolicyFacts, policies};
use stovepipe_partition::Partition;
use stovepipe_schedule::{Schedule, schedules};

use self::advice::{bytes_that_help, ranks_that_help};
use self::fit::{Cut, check_plan};
use self::request::Request;
use self::search::Search;
use self::sized::SizedLayers;
use crate::cluster::Cluster;
use crate::error::TuneError;
use crate::profile::Profile;
use crate::report::{Choice, Configuration, Report};

/// Searches stages, micro-batches, schedule and checkpoint policy for the fastest step.
///
/// Each configuration is cut at the size that its micro-batches have, planned, and simulated with
/// the costs of that size, links included. What the ranks hold is what
/// [`Timeline::peak_bytes`](stovepipe_schedule::Timeline::peak_bytes) counts of parameters, states,
/// gradients, activations, values that wait, and what is needed temporarily.
///
/// A configuration that is bound to take longer than another isn't simulated, unless it is asked to
/// be [exhaustive](Self::exhaustive). All cores are used, and the answer is the same for any number
/// of them.
///
/// By default it tries the [schedules](stovepipe_schedule::schedules()),
/// [policies](stovepipe_checkpoint::policies()) and
/// [partitioners](stovepipe_partition::partitioners()) whose entries say so: those that every stage
/// can run and that need no argument. Of numbers it tries
///
/// - every number of ranks;
/// - one stage on each, or with schedules of several from two to four;
/// - as micro-batches the divisors of the batch, and the ranks times powers of two.
#[derive(Clone)]
pub struct Tuner<'a>(Request<'a>);

impl<'a> Tuner<'a> {
    /// For the layers of a profile on the ranks of a cluster. The batch is the largest size
    /// measured.
    #[must_use]
    pub fn new(profile: &'a Profile, cluster: &'a Cluster) -> Self {
        Self(Request {
            profile,
            cluster,
            batch: profile.sizes().max().unwrap_or(1),
            schedules: None,
            policies: tuned_policies(),
            partitioners: None,
            micro_batches: None,
            ranks: None,
            stages_per_rank: None,
            exhaustive: false,
            progress: None,
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
        self.0.schedules = Some(schedules.into_iter().map(Arc::from).collect());
        self
    }

    /// Only these checkpoint policies.
    #[must_use]
    pub fn policies(mut self, policies: Vec<Box<dyn CheckpointPolicy>>) -> Self {
        self.0.policies = policies.into_iter().map(Arc::from).collect();
        self
    }

    /// Only these partitioners, by [name](stovepipe_partition::partitioner_named): each plan makes
    /// them anew with its own facts. The layers are cut by the first of them whose cut fits, and
    /// the cut isn't improved.
    #[must_use]
    pub fn partitioners(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.partitioners = Some(names.into_iter().map(Into::into).collect());
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

    /// Simulates every configuration, also those that can't be the fastest.
    #[must_use]
    pub fn exhaustive(mut self, exhaustive: bool) -> Self {
        self.0.exhaustive = exhaustive;
        self
    }

    /// Calls a function whenever something is settled, with the number of shapes of plans that are,
    /// and the number of all.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        self.0.progress = Some(Arc::new(progress));
        self
    }

    /// Searches.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if something asked for makes no sense; [`TuneError::NothingFits`] if
    /// no configuration can run, with the reasons, and with what would help.
    pub fn tune(&self) -> Result<Report, TuneError> {
        let request = &self.0;
        request.check()?;
        let schedules = request.schedules.clone().unwrap_or_else(tuned_schedules);
        let report = Search::new(request, request.groups(&schedules)?).run();
        if report.choices.is_empty() {
            let rejected = report.rejected;
            let more = bytes_that_help(request, &rejected);
            let ranks = ranks_that_help(request, &schedules);
            return Err(TuneError::NothingFits { rejected, more, ranks });
        }
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
        check_plan(&plan).map_err(|refusal| refuse(refusal.reason))?;
        let (sized, partition) = (SizedLayers::new(request, micro_batches), partition.clone());
        let cut = Cut { request, configuration, plan: &plan, sized: &sized, partition };
        cut.predict().map_err(|refusal| refuse(refusal.reason))
    }
}

/// The schedules that say that they are to be tried.
fn tuned_schedules() -> Vec<Arc<dyn Schedule>> {
    let tuned = schedules().iter().filter(|named| named.tuned);
    tuned.map(|named| Arc::from(named.make())).collect()
}

/// The policies that say that they are to be tried. They take no argument and need no facts.
fn tuned_policies() -> Vec<Arc<dyn CheckpointPolicy>> {
    let tuned = policies().iter().filter(|named| named.tuned);
    tuned
        .filter_map(|named| named.make(None, &PolicyFacts::default()).ok())
        .map(Arc::from)
        .collect()
}
