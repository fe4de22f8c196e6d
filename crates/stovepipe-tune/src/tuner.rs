//! The search: every combination is cut, planned and simulated.

use stovepipe_checkpoint::{Always, CheckpointPolicy, ExceptLast, Layout, Never};
use stovepipe_partition::{ConstrainedMinimax, Costs, LayerBytes, Memory, Partition};
use stovepipe_schedule::{
    CostModel, Edge, Edges, Link, MicroBatch, Mode, Plan, Program, Retention, Schedule, Shape,
    Stage, StageCost, StageMemory, schedules, simulate,
};

use crate::profile::LayerCost;
use crate::{Choice, Cluster, Profile, Rejected, Report, TuneError};

/// Searches stages, micro-batches, schedule and checkpoint policy for the fastest step.
///
/// Each combination is cut by [`ConstrainedMinimax`] at the size that its micro-batches have, planned,
/// and simulated with the costs of that size, links included. What the ranks hold is the parameters,
/// gradients and optimizer states of their layers and the peak of activations that the plan makes.
///
/// By default all schedules that every stage can run are tried, with the number of stages per rank that
/// they are made for, all three policies, every number of ranks, and powers of two as numbers of
/// micro-batches.
pub struct Tuner<'a> {
    profile: &'a Profile,
    cluster: &'a Cluster,
    batch: usize,
    schedules: Vec<Box<dyn Schedule>>,
    policies: Vec<Box<dyn CheckpointPolicy>>,
    micro_batches: Option<Vec<usize>>,
    ranks: Option<Vec<usize>>,
    chunks: Option<Vec<usize>>,
}

/// One combination.
#[derive(Clone, Copy)]
struct Combination<'a> {
    schedule: &'a dyn Schedule,
    policy: &'a dyn CheckpointPolicy,
    shape: Shape,
}

/// Why a combination can't run, and the bytes that are missing if that is why.
type Refusal = (String, Option<u64>);

impl<'a> Tuner<'a> {
    /// For the layers of a profile on the ranks of a cluster. The batch is the largest size measured.
    #[must_use]
    pub fn new(profile: &'a Profile, cluster: &'a Cluster) -> Self {
        Self {
            profile,
            cluster,
            batch: profile.sizes().max().unwrap_or(1),
            schedules: schedules(),
            policies: vec![Box::new(Never), Box::new(ExceptLast), Box::new(Always)],
            micro_batches: None,
            ranks: None,
            chunks: None,
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
        self.schedules = schedules;
        self
    }

    /// Only these checkpoint policies.
    #[must_use]
    pub fn policies(mut self, policies: Vec<Box<dyn CheckpointPolicy>>) -> Self {
        self.policies = policies;
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
    pub fn chunks(mut self, counts: impl Into<Vec<usize>>) -> Self {
        self.chunks = Some(counts.into());
        self
    }

    /// Tries every combination.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] if something asked for makes no sense; [`TuneError::NothingFits`] if no
    /// combination can run, with the reasons.
    pub fn tune(&self) -> Result<Report, TuneError> {
        self.check()?;
        let mut report = Report { choices: Vec::new(), rejected: Vec::new() };
        for combination in self.combinations() {
            match self.try_one(combination) {
                Ok(Some(choice)) => report.choices.push(choice),
                Ok(None) => {}
                Err((reason, missing)) => {
                    let Combination { schedule, policy, shape } = combination;
                    report.rejected.push(Rejected {
                        schedule: schedule.name().to_owned(),
                        policy: policy.name().to_owned(),
                        ranks: shape.ranks,
                        chunks: shape.chunks,
                        micro_batches: shape.micro_batches,
                        reason,
                        missing,
                    });
                }
            }
        }
        report.rejected.sort_by_key(|rejected| rejected.missing.unwrap_or(u64::MAX));
        if report.choices.is_empty() {
            return Err(TuneError::NothingFits { rejected: report.rejected });
        }
        let most = |choice: &Choice| choice.memory.iter().flatten().copied().max();
        report.choices.sort_by(|a, b| {
            let by_time = a.seconds.total_cmp(&b.seconds);
            by_time.then(a.ranks.cmp(&b.ranks)).then(most(a).cmp(&most(b)))
        });
        Ok(report)
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
        let measured = |m: &usize| {
            let (small, large) = sizes_of(self.batch, *m);
            self.profile.at(small).is_some() && self.profile.at(large).is_some()
        };
        asked.into_iter().filter(|m| (1..=self.batch).contains(m)).filter(measured).collect()
    }

    fn combinations(&self) -> Vec<Combination<'_>> {
        let ranks = self.ranks.clone().unwrap_or_else(|| (1..=self.cluster.ranks).collect());
        let counts = self.micro_batch_counts();
        let mut all = Vec::new();
        for schedule in &self.schedules {
            let chunks = self.chunks.clone().unwrap_or_else(|| vec![schedule.default_chunks()]);
            for &ranks in ranks.iter().filter(|&&ranks| (1..=self.cluster.ranks).contains(&ranks)) {
                for &chunks in &chunks {
                    for &micro_batches in &counts {
                        let shape = Shape::new(ranks, micro_batches).with_chunks(chunks);
                        let of = |policy| Combination { schedule, policy, shape };
                        all.extend(self.policies.iter().map(|policy| of(&**policy)));
                    }
                }
            }
        }
        all
    }

    /// What it would take; nothing if it doesn't train, or splits backwards, whose parts aren't measured.
    fn try_one(&self, combination: Combination<'_>) -> Result<Option<Choice>, Refusal> {
        let Combination { schedule, policy, shape } = combination;
        let plan = schedule.plan(shape).map_err(|error| (error.to_string(), None))?;
        if plan.mode() == Mode::ForwardOnly || plan.splits_backward() {
            return Ok(None);
        }
        let costs = self.costs(shape.micro_batches);
        let partition = self.cut(&plan, policy, &costs)?;
        let sizes = partition.sizes();
        let other = |error: &dyn std::error::Error| (error.to_string(), None);
        let layout = Layout::new(&plan, &sizes).map_err(|e| other(&e))?;
        let retention = policy.retention(layout).map_err(|e| other(&e))?;
        let program = Program::lower(&plan, &Edges::chain(plan.stages()), &retention);
        let program = program.map_err(|e| other(&e))?;
        let memory = self.memory(&program, &partition, &costs.large);
        self.check_memory(memory.as_deref(), &partition)?;
        let model = self.cost_model(&plan, &partition, &costs);
        let timeline = simulate(&program, &model).map_err(|e| other(&e))?;
        Ok(Some(Choice {
            schedule: schedule.name().to_owned(),
            policy: policy.name().to_owned(),
            ranks: shape.ranks,
            chunks: shape.chunks,
            micro_batches: shape.micro_batches,
            sizes,
            seconds: timeline.makespan(),
            bubble: timeline.bubble().unwrap_or(0.0),
            memory,
        }))
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

    /// Cuts the layers by their time at the larger size, within the ranks' memory.
    fn cut(
        &self,
        plan: &Plan,
        policy: &dyn CheckpointPolicy,
        costs: &SizedCosts,
    ) -> Result<Partition, Refusal> {
        let refuse = |error: &dyn std::error::Error| (error.to_string(), None);
        // How often a stage recomputes doesn't depend on how many layers it has.
        let layers = vec![1; plan.stages()];
        let layout = Layout::new(plan, &layers).map_err(|e| refuse(&e))?;
        let retention = policy.retention(layout).map_err(|e| refuse(&e))?;
        let recomputed = share_recomputed(plan, &retention);
        let time = |cost: &LayerCost| cost.forward + cost.backward + recomputed * cost.recompute;
        let times = Costs::new(costs.large.iter().map(time).collect::<Vec<_>>());
        let times = times.map_err(|e| refuse(&e))?;
        let placement: Vec<usize> = plan.placement().iter().map(|rank| rank.index()).collect();
        let mut partitioner = ConstrainedMinimax::new()
            .placement(placement)
            .speeds(&self.cluster.speeds[..plan.ranks()]);
        if let Some(capacities) = &self.cluster.memory {
            let recomputes = recomputed > 0.0;
            let bytes = self.profile.layers().iter().zip(&costs.large).map(|(layer, cost)| {
                let activations = cost.activation_bytes.unwrap_or(0);
                LayerBytes {
                    fixed: layer.fixed_bytes(),
                    kept: if recomputes { 0 } else { activations },
                    entry: if recomputes { cost.input_bytes } else { 0 },
                    working: if recomputes { activations } else { 0 },
                }
            });
            partitioner = partitioner.memory(Memory {
                layers: bytes.collect(),
                in_flight: plan.stage_activations(),
                capacities: capacities[..plan.ranks()].to_vec(),
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

    /// The most bytes that each rank holds, if the profile knows.
    fn memory(
        &self,
        program: &Program,
        partition: &Partition,
        costs: &[LayerCost],
    ) -> Option<Vec<u64>> {
        if !self.profile.knows_memory() {
            return None;
        }
        let stages: Vec<StageMemory> = partition
            .ranges()
            .map(|layers| StageMemory {
                activations: costs[layers.clone()]
                    .iter()
                    .map(|cost| cost.activation_bytes.unwrap_or(0))
                    .collect(),
                inputs: costs[layers].iter().map(|cost| cost.input_bytes).collect(),
            })
            .collect();
        let plan = program.plan();
        let fixed = |rank: usize| -> u64 {
            let layers = plan.stages_of(rank).into_iter().flat_map(|s| partition.range(s.index()));
            layers.map(|layer| self.profile.layers()[layer].fixed_bytes()).sum()
        };
        let ranks = 0..plan.ranks();
        Some(ranks.map(|rank| fixed(rank) + program.peak_bytes(rank, &stages)).collect())
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

/// The layers' costs at the two sizes that the micro-batches have.
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

/// How many of all backwards are preceded by a recomputation.
fn share_recomputed(plan: &Plan, retention: &Retention) -> f64 {
    let mut recomputed = 0usize;
    for stage in Stage::first(plan.stages()) {
        let of = |m: &MicroBatch| retention.of(stage, *m).recomputes();
        recomputed += MicroBatch::first(plan.micro_batches()).filter(of).count();
    }
    recomputed as f64 / (plan.stages() * plan.micro_batches()) as f64
}
