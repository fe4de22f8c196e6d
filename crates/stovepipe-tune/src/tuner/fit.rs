//! One configuration: planned, cut, lowered, and priced by simulation.

use stovepipe_checkpoint::lower;
use stovepipe_partition::Partition;
use stovepipe_schedule::{
    CostModel, Edge, Edges, Link, MicroBatch, Mode, Plan, Program, Stage, StageCost, StageMemory,
    simulate,
};

use super::cut::{Bound, cut};
use super::refusal::Refusal;
use super::request::{Request, SizedCosts};
use crate::profile::LayerCost;
use crate::report::{Choice, Configuration};

/// A configuration that is cut and lowered, ready to be simulated.
pub(super) struct Fitted {
    configuration: Configuration,
    costs: SizedCosts,
    partition: Partition,
    program: Program,
    memory: Option<Vec<u64>>,
}

/// Cuts and plans, with the first of the partitioners whose cut fits. Gives nothing if the plan
/// doesn't train, or splits backwards, whose parts aren't measured.
pub(super) fn fit(
    request: &Request<'_>,
    configuration: &Configuration,
) -> Result<Option<Fitted>, Refusal> {
    let Configuration { schedule, policy, .. } = configuration;
    let plan = schedule.plan(configuration.shape())?;
    if plan.mode() == Mode::ForwardOnly || plan.splits_backward() {
        return Ok(None);
    }
    let costs = request.costs(configuration.micro_batches);
    let mut first_refusal = None;
    for partitioner in &request.partitioners {
        // What needs the least excludes no cut that fits; where the fastest of them doesn't, the
        // next may.
        for bound in [Bound::Least, Bound::Most] {
            let attempt = cut(request, partitioner, &plan, &**policy, &costs.large, bound)
                .and_then(|partition| {
                    let fitted = fit_cut(request, configuration, &plan, costs.clone(), partition)?;
                    check_memory(request, &fitted)?;
                    Ok(fitted)
                });
            match attempt {
                Ok(fitted) => return Ok(Some(fitted)),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
    }
    Err(first_refusal.unwrap_or_else(|| Refusal {
        reason: "there is no partitioner to cut with: name at least one".to_owned(),
        missing: None,
    }))
}

/// Lowers a plan for layers that are cut.
pub(super) fn fit_cut(
    request: &Request<'_>,
    configuration: &Configuration,
    plan: &Plan,
    costs: SizedCosts,
    partition: Partition,
) -> Result<Fitted, Refusal> {
    let edges = Edges::chain(plan.stages());
    let program = lower(plan, &partition.sizes(), &*configuration.policy, &edges)?;
    let memory = memory(request, &program, &partition, &costs.large);
    Ok(Fitted { configuration: configuration.clone(), costs, partition, program, memory })
}

impl Fitted {
    /// Simulates it.
    pub(super) fn price(self, request: &Request<'_>) -> Result<Choice, Refusal> {
        let Self { configuration, costs, partition, program, memory } = self;
        let model = cost_model(request, program.plan(), &partition, &costs);
        let timeline = simulate(&program, &model)?;
        let ranks = 0..configuration.ranks;
        let most = ranks.map(|rank| program.peak_activations(rank)).max().unwrap_or(0);
        let samples = request.batch as f64 / configuration.micro_batches as f64;
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
}

/// The most bytes that each rank holds, if the profile knows.
fn memory(
    request: &Request<'_>,
    program: &Program,
    partition: &Partition,
    costs: &[LayerCost],
) -> Option<Vec<u64>> {
    let stages = partition.ranges().map(|layers| request.profile.stage_of(layers, costs));
    let stages: Vec<StageMemory> = stages.collect::<Option<_>>()?;
    let ranks = 0..program.plan().ranks();
    Some(ranks.map(|rank| program.peak_bytes(rank, &stages)).collect())
}

/// Refuses what a rank has no memory for.
fn check_memory(request: &Request<'_>, fitted: &Fitted) -> Result<(), Refusal> {
    let (Some(needed), Some(has)) = (&fitted.memory, &request.cluster.memory) else {
        return Ok(());
    };
    let lacks = |(rank, (needed, has)): (usize, (&u64, &u64))| {
        needed.checked_sub(*has).filter(|missing| *missing > 0).map(|missing| (rank, missing))
    };
    let lacking = needed.iter().zip(has).enumerate().filter_map(lacks);
    let Some((rank, missing)) = lacking.max_by_key(|(_, missing)| *missing) else {
        return Ok(());
    };
    let (partition, needed) = (&fitted.partition, needed[rank]);
    Err(Refusal {
        reason: format!(
            "cut into {partition}, rank {rank} needs {needed} bytes and lacks {missing}"
        ),
        missing: Some(missing),
    })
}

/// The costs of the stages at both sizes, updates included, and of the links.
fn cost_model(
    request: &Request<'_>,
    plan: &Plan,
    partition: &Partition,
    costs: &SizedCosts,
) -> CostModel {
    let stage_cost = |stage: Stage, layer_costs: &[LayerCost]| {
        let layers = partition.range(stage.index());
        let speed = request.cluster.speeds[plan.placement()[stage.index()].index()];
        let sum = |time: fn(&LayerCost) -> f64| {
            layer_costs[layers.clone()].iter().map(time).sum::<f64>() / speed
        };
        let update = request.profile.layers()[layers.clone()].iter().map(|l| l.update.median);
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
        let link = Link::of_bytes(request.cluster.latency, bytes, request.cluster.bandwidth);
        model = model.with_edge_link(Edge { from: pair[0], to: pair[1] }, link);
    }
    model
}
