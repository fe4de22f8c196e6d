//! The search: every configuration is cut, planned and simulated.

use std::sync::Arc;

use stovepipe_checkpoint::{Always, CheckpointPolicy, ExceptLast, Layout, Never};
use stovepipe_partition::{ConstrainedMinimax, Costs, LayerBytes, Memory, Partition};
use stovepipe_schedule::{
    CostModel, Edge, Edges, Link, MicroBatch, Mode, Plan, Program, Schedule, Stage, StageCost,
    StageMemory, schedules, simulate,
};

use crate::profile::LayerCost;
use crate::{Choice, Cluster, Configuration, Profile, Rejected, Report, TuneError};

/// Searches stages, micro-batches, schedule and checkpoint policy for the fastest step.
///
/// Each configuration is cut by [`ConstrainedMinimax`] at the size that its micro-batches have, planned,
/// and simulated with the costs of that size, links included. What the ranks hold is what
/// [`Program::peak_bytes`] counts of parameters, states, gradients, activations and what is needed for a
/// moment.
///
/// By default all schedules that every stage can run are tried, with the number of stages per rank that
/// they are made for, all three policies, every number of ranks, and powers of two as numbers of
/// micro-batches.
#[derive(Clone)]
pub struct Tuner<'a> {
    profile: &'a Profile,
    cluster: &'a Cluster,
    batch: usize,
    schedules: Vec<Arc<dyn Schedule>>,
    policies: Vec<Arc<dyn CheckpointPolicy>>,
    micro_batches: Option<Vec<usize>>,
    ranks: Option<Vec<usize>>,
    stages_per_rank: Option<Vec<usize>>,
}

/// Why a configuration can't run, and the bytes that are missing if that is why.
type Refusal = (String, Option<u64>);

impl<'a> Tuner<'a> {
    /// For the layers of a profile on the ranks of a cluster. The batch is the largest size measured.
    #[must_use]
    pub fn new(profile: &'a Profile, cluster: &'a Cluster) -> Self {
        Self {
            profile,
            cluster,
            batch: profile.sizes().max().unwrap_or(1),
            schedules: schedules()
                .iter()
                .filter(|named| named.tuned)
                .map(|named| Arc::from(named.make()))
                .collect(),
            policies: vec![Arc::new(Never), Arc::new(ExceptLast), Arc::new(Always)],
            micro_batches: None,
            ranks: None,
            stages_per_rank: None,
        }
    }

    /// Samples in a mini-batch.
    #[must_use]
    pub fn batch(mut self, samples: usize) -> Self {
        self.batch = samples;
        self
    }

    /// Only these schedules.
    #[must_use]
    pub fn schedules(mut self, schedules: Vec<Box<dyn Schedule>>) -> Self {
        self.schedules = schedules.into_iter().map(Arc::from).collect();
        self
    }

    /// Only these checkpoint policies.
    #[must_use]
    pub fn policies(mut self, policies: Vec<Box<dyn CheckpointPolicy>>) -> Self {
        self.policies = policies.into_iter().map(Arc::from).collect();
        self
    }

    /// Only these numbers of micro-batches.
    #[must_use]
    pub fn micro_batches(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.micro_batches = Some(counts.into());
        self
    }

    /// Only these numbers of ranks, taken from the first on.
    #[must_use]
    pub fn ranks(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.ranks = Some(counts.into());
        self
    }

    /// Only these numbers of stages on each rank, instead of what each schedule is made for.
    #[must_use]
    pub fn stages_per_rank(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.stages_per_rank = Some(counts.into());
        self
    }

    /// Tries every configuration.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if something asked for makes no sense; [`TuneError::NothingFits`] if no
    /// configuration can run, with the reasons, and with what would help.
    pub fn tune(&self) -> Result<Report, TuneError> {
        self.check()?;
        let mut report = Report { choices: Vec::new(), rejected: Vec::new() };
        for configuration in self.configurations() {
            match self
                .fit(&configuration)
                .and_then(|fitted| fitted.map(|f| self.price(f)).transpose())
            {
                Ok(choice) => report.choices.extend(choice),
                Err((reason, missing)) => {
                    report.rejected.push(Rejected { configuration, reason, missing });
                }
            }
        }
        report.rejected.sort_by_key(|rejected| rejected.missing.unwrap_or(u64::MAX));
        if report.choices.is_empty() {
            let rejected = report.rejected;
            let (more, ranks) = (self.bytes_that_help(&rejected), self.ranks_that_help());
            return Err(TuneError::NothingFits { rejected, more, ranks });
        }
        report.sort();
        Ok(report)
    }

    /// What a configuration would take with a cut of one's own, whether or not it fits into memory.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if something asked for makes no sense, or can't be planned and simulated.
    pub fn predict(
        &self,
        configuration: &Configuration,
        partition: &Partition,
    ) -> Result<Choice, TuneError> {
        self.check()?;
        let refuse = |reason| TuneError::Request { what: "configuration", reason };
        let layers = self.profile.layers().len();
        if partition.layers() != layers {
            let found = partition.layers();
            return Err(refuse(format!("it cuts {found} layers, the profile has {layers}")));
        }
        if configuration.ranks > self.cluster.ranks {
            let (wanted, has) = (configuration.ranks, self.cluster.ranks);
            return Err(refuse(format!("it needs {wanted} ranks, there are {has}")));
        }
        let micro_batches = configuration.micro_batches;
        if !self.is_measured(micro_batches) {
            return Err(refuse(format!(
                "{micro_batches} micro-batches of {} samples have sizes outside the measured ones",
                self.batch
            )));
        }
        let plan = configuration.schedule.plan(configuration.shape());
        let plan = plan.map_err(|error| refuse(error.to_string()))?;
        let costs = self.costs(micro_batches);
        let fitted = self.lower(configuration, &plan, costs, partition.clone());
        fitted.and_then(|fitted| self.price(fitted)).map_err(|(reason, _)| refuse(reason))
    }

    /// How many more bytes on every rank the nearest configuration runs with.
    fn bytes_that_help(&self, rejected: &[Rejected]) -> Option<u64> {
        // What is missing is told of the best cut, but the next one is cut for the larger memory.
        const ATTEMPTS: usize = 8;
        let Rejected { configuration, missing, .. } = rejected.first()?;
        let mut more = (*missing)?;
        for _ in 0..ATTEMPTS {
            let cluster = self.cluster.clone().with_more_memory(more);
            match (Tuner { cluster: &cluster, ..self.clone() }).fit(configuration) {
                Ok(_) => return Some(more),
                Err((_, missing)) => more = more.saturating_add(missing?),
            }
        }
        None
    }

    /// A larger number of ranks like the last one on which something can run: not always the smallest.
    fn ranks_that_help(&self) -> Option<usize> {
        self.cluster.memory.as_ref()?;
        let fits = |ranks: usize| {
            let cluster = self.cluster.clone().with_ranks(ranks);
            let tuner = Tuner { cluster: &cluster, ..self.clone() }.ranks([ranks]);
            tuner.configurations().iter().any(|c| matches!(tuner.fit(c), Ok(Some(_))))
        };
        let most = self.profile.layers().len();
        let (mut too_few, mut ranks) = (self.cluster.ranks, self.cluster.ranks);
        loop {
            if ranks >= most {
                return None;
            }
            ranks = (2 * ranks).min(most);
            if fits(ranks) {
                break;
            }
            too_few = ranks;
        }
        while ranks - too_few > 1 {
            let middle = usize::midpoint(too_few, ranks);
            if fits(middle) {
                ranks = middle;
            } else {
                too_few = middle;
            }
        }
        Some(ranks)
    }

    fn check(&self) -> Result<(), TuneError> {
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
    fn is_measured(&self, micro_batches: usize) -> bool {
        if !(1..=self.batch).contains(&micro_batches) {
            return false;
        }
        let (small, large) = sizes_of(self.batch, micro_batches);
        self.profile.at(small).is_some() && self.profile.at(large).is_some()
    }

    fn configurations(&self) -> Vec<Configuration> {
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

    /// Cuts and plans; nothing if it doesn't train, or splits backwards, whose parts aren't measured.
    fn fit(&self, configuration: &Configuration) -> Result<Option<Fitted>, Refusal> {
        let Configuration { schedule, policy, .. } = configuration;
        let plan = schedule.plan(configuration.shape()).map_err(|e| (e.to_string(), None))?;
        if plan.mode() == Mode::ForwardOnly || plan.splits_backward() {
            return Ok(None);
        }
        let costs = self.costs(configuration.micro_batches);
        let attempt = |cautious: bool| {
            let partition = self.cut(&plan, &**policy, &costs, cautious)?;
            let fitted = self.lower(configuration, &plan, costs.clone(), partition)?;
            self.check_memory(fitted.memory.as_deref(), &fitted.partition)?;
            Ok(fitted)
        };
        // The first excludes no cut that fits; where the fastest of them doesn't, the next may.
        attempt(false).or_else(|refusal: Refusal| attempt(true).map_err(|_| refusal)).map(Some)
    }

    fn lower(
        &self,
        configuration: &Configuration,
        plan: &Plan,
        costs: SizedCosts,
        partition: Partition,
    ) -> Result<Fitted, Refusal> {
        let sizes = partition.sizes();
        let refuse = |error: &dyn std::error::Error| (error.to_string(), None);
        let layout = Layout::new(plan, &sizes).map_err(|e| refuse(&e))?;
        let retention = configuration.policy.retention(layout).map_err(|e| refuse(&e))?;
        let retention = retention.with_recomputed(plan, &sizes);
        let program = Program::lower(plan, &Edges::chain(plan.stages()), &retention);
        let program = program.map_err(|e| refuse(&e))?;
        let memory = self.memory(&program, &partition, &costs.large);
        Ok(Fitted { configuration: configuration.clone(), costs, partition, program, memory })
    }

    /// Simulates.
    fn price(&self, fitted: Fitted) -> Result<Choice, Refusal> {
        let Fitted { configuration, costs, partition, program, memory } = fitted;
        let model = self.cost_model(program.plan(), &partition, &costs);
        let timeline = simulate(&program, &model).map_err(|error| (error.to_string(), None))?;
        let ranks = 0..configuration.ranks;
        let most = ranks.map(|rank| program.peak_activations(rank)).max().unwrap_or(0);
        let samples = self.batch as f64 / configuration.micro_batches as f64;
        let kept_samples = most as f64 * samples / configuration.stages_per_rank as f64;
        Ok(Choice {
            configuration,
            partition,
            kept_samples,
            seconds: timeline.makespan(),
            bubble: timeline.bubble().unwrap_or(0.0),
            memory,
        })
    }

    fn costs(&self, micro_batches: usize) -> SizedCosts {
        let (small, large) = sizes_of(self.batch, micro_batches);
        let at = |samples| self.profile.at(samples).unwrap_or_default();
        SizedCosts {
            small: at(small),
            large: at(large),
            // The larger ones come first.
            larger: self.batch % micro_batches,
        }
    }

    /// Cuts the layers by their time at the larger size, within the ranks' memory, of which the layers need
    /// at least so much; or, with caution, at most, but for what segments of a stage hold.
    fn cut(
        &self,
        plan: &Plan,
        policy: &dyn CheckpointPolicy,
        costs: &SizedCosts,
        cautious: bool,
    ) -> Result<Partition, Refusal> {
        let refuse = |error: &dyn std::error::Error| (error.to_string(), None);
        let Probe { recomputed, whole } = self.probe(plan, policy);
        let time = |cost: &LayerCost| cost.forward + cost.backward + recomputed * cost.recompute;
        let times = Costs::new(costs.large.iter().map(time).collect::<Vec<_>>());
        let times = times.map_err(|e| refuse(&e))?;
        let placement: Vec<usize> = plan.placement().iter().map(|rank| rank.index()).collect();
        let mut partitioner = ConstrainedMinimax::new()
            .placement(placement)
            .speeds(&self.cluster.speeds[..plan.ranks()]);
        if let Some(capacities) = &self.cluster.memory {
            let recomputes = recomputed > 0.0;
            let working = |cost: &LayerCost| cost.memory.map_or(0, |memory| memory.working());
            let moment = costs.large.iter().map(working).max().filter(|_| cautious).unwrap_or(0);
            let bytes = self.profile.layers().iter().zip(&costs.large).map(|(layer, cost)| {
                let activations = cost.memory.map_or(0, |memory| memory.activation_bytes);
                // What segments of a stage hold is only known once it is cut, and checked then.
                let held = if cautious { layer.fixed_bytes() } else { layer.lasting_bytes() };
                let fixed = LayerBytes { fixed: held, ..LayerBytes::default() };
                match (recomputes, whole) {
                    (false, _) => LayerBytes { kept: activations, ..fixed },
                    (true, true) => {
                        LayerBytes { entry: cost.input_bytes, working: activations, ..fixed }
                    }
                    (true, false) => fixed,
                }
            });
            partitioner = partitioner.memory(Memory {
                layers: bytes.collect(),
                in_flight: if cautious {
                    plan.stage_activations()
                } else {
                    // Stages of one rank needn't hold most at the same time.
                    plan.activations_at_peak()
                },
                capacities: capacities[..plan.ranks()]
                    .iter()
                    .map(|bytes| bytes.saturating_sub(moment))
                    .collect(),
            });
        }
        partitioner.solve(&times, plan.stages()).map(|solution| solution.partition).map_err(
            |error| {
                let missing = match &error {
                    stovepipe_partition::PartitionError::DoesNotFit { needed, memory, .. } => {
                        needed
                            .iter()
                            .zip(memory)
                            .map(|(needed, has)| needed.saturating_sub(*has))
                            .max()
                    }
                    _ => None,
                };
                (error.to_string(), missing)
            },
        )
    }

    /// What the policy drops if the layers are cut evenly: how much of it, and whether always whole stages.
    fn probe(&self, plan: &Plan, policy: &dyn CheckpointPolicy) -> Probe {
        let (layers, stages) = (self.profile.layers().len(), plan.stages());
        let end = |stage: usize| stage * layers / stages;
        let sizes: Vec<usize> = (0..stages).map(|s| (end(s + 1) - end(s)).max(1)).collect();
        let retention = Layout::new(plan, &sizes).and_then(|layout| policy.retention(layout));
        let Ok(retention) = retention else {
            // It may still agree to the cut that is made.
            return Probe { recomputed: 1.0, whole: false };
        };
        let retention = retention.with_recomputed(plan, &sizes);
        let (mut dropped, mut all, mut whole) = (0, 0, true);
        for (stage, &size) in Stage::first(stages).zip(&sizes) {
            for m in MicroBatch::first(plan.micro_batches()) {
                let segments = retention.of(stage, m).dropped();
                dropped += segments.iter().map(ExactSizeIterator::len).sum::<usize>();
                whole &= matches!(segments, []) || segments.iter().eq([&(0..size)]);
                all += size;
            }
        }
        Probe { recomputed: dropped as f64 / all as f64, whole }
    }

    /// The most bytes that each rank holds, if the profile knows.
    fn memory(
        &self,
        program: &Program,
        partition: &Partition,
        costs: &[LayerCost],
    ) -> Option<Vec<u64>> {
        let stages = partition.ranges().map(|layers| self.profile.stage_of(layers, costs));
        let stages: Vec<StageMemory> = stages.collect::<Option<_>>()?;
        let ranks = 0..program.plan().ranks();
        Some(ranks.map(|rank| program.peak_bytes(rank, &stages)).collect())
    }

    fn check_memory(&self, needed: Option<&[u64]>, partition: &Partition) -> Result<(), Refusal> {
        let (Some(needed), Some(has)) = (needed, &self.cluster.memory) else { return Ok(()) };
        let lacks = |(rank, (needed, has)): (usize, (&u64, &u64))| {
            needed.checked_sub(*has).filter(|missing| *missing > 0).map(|missing| (rank, missing))
        };
        let worst = needed
            .iter()
            .zip(has)
            .enumerate()
            .filter_map(lacks)
            .max_by_key(|(_, missing)| *missing);
        match worst {
            None => Ok(()),
            Some((rank, missing)) => Err((
                format!(
                    "cut into {partition}, rank {rank} needs {} bytes and lacks {missing}",
                    needed[rank]
                ),
                Some(missing),
            )),
        }
    }

    fn cost_model(&self, plan: &Plan, partition: &Partition, costs: &SizedCosts) -> CostModel {
        let stage_cost = |stage: Stage, layer_costs: &[LayerCost]| {
            let layers = partition.range(stage.index());
            let speed = self.cluster.speeds[plan.placement()[stage.index()].index()];
            let sum = |of: fn(&LayerCost) -> f64| {
                layer_costs[layers.clone()].iter().map(of).sum::<f64>() / speed
            };
            let update = self.profile.layers()[layers.clone()].iter().map(|l| l.update.median);
            StageCost {
                recompute: sum(|cost| cost.recompute),
                update: update.sum::<f64>() / speed,
                ..StageCost::new(sum(|cost| cost.forward), sum(|cost| cost.backward))
            }
        };
        let stages: Vec<Stage> = Stage::first(plan.stages()).collect();
        let usual = stages.iter().map(|&stage| stage_cost(stage, &costs.small));
        let mut model = CostModel::new(usual.collect::<Vec<_>>());
        for &stage in &stages {
            for m in MicroBatch::first(costs.larger) {
                model = model.with_micro_batch(stage, m, stage_cost(stage, &costs.large));
            }
        }
        for pair in stages.windows(2) {
            let last = partition.range(pair[0].index()).end - 1;
            let bytes = costs.large[last].output_bytes as f64;
            let link = Link::of_bytes(self.cluster.latency, bytes, self.cluster.bandwidth);
            model = model.with_edge_link(Edge { from: pair[0], to: pair[1] }, link);
        }
        model
    }
}

/// A configuration that is cut and lowered, ready to be simulated.
struct Fitted {
    configuration: Configuration,
    costs: SizedCosts,
    partition: Partition,
    program: Program,
    memory: Option<Vec<u64>>,
}

/// The layers' costs at the two sizes that the micro-batches have.
#[derive(Clone)]
struct SizedCosts {
    small: Vec<LayerCost>,
    large: Vec<LayerCost>,
    /// How many micro-batches are of the larger size.
    larger: usize,
}

/// The sizes of `batch` samples in `micro_batches` micro-batches: they differ by one at most.
fn sizes_of(batch: usize, micro_batches: usize) -> (usize, usize) {
    (batch / micro_batches, batch.div_ceil(micro_batches))
}

/// What a policy drops before the layers are cut.
struct Probe {
    /// How much of all work is done twice.
    recomputed: f64,
    /// Whether nothing but whole stages is dropped.
    whole: bool,
}
