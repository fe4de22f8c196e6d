//! One configuration: cut, lowered, and priced by simulation.

use stovepipe_checkpoint::decide;
use stovepipe_partition::Partition;
use stovepipe_schedule::{Mode, Plan, Program, Retention, StageMemory, simulate};

use super::bound::Estimator;
use super::cut::Cutter;
use super::price::{cost_model, edges};
use super::refusal::Refusal;
use super::request::Request;
use super::sized::SizedLayers;
use crate::report::{Choice, Configuration};

/// The price of a configuration, or a bound of it.
pub(super) enum Fitted {
    /// It can run.
    Choice(Choice),
    /// It isn't simulated, because its cut takes at least so long.
    Bounded(f64),
}

/// Says why a plan can't be priced, if it can't.
pub(super) fn check_plan(plan: &Plan) -> Result<(), Refusal> {
    let reason = match (plan.mode(), plan.splits_backward()) {
        (Mode::ForwardOnly, _) => "it only runs forwards, which trains nothing",
        (_, true) => "it splits backwards, and a profile holds whole ones",
        _ => return Ok(()),
    };
    Err(Refusal { reason: reason.to_owned(), missing: None })
}

/// Cuts a plan, and simulates the first cut that fits unless it is bound to take longer than
/// `limit`.
pub(super) fn fit(
    request: &Request<'_>,
    configuration: &Configuration,
    plan: &Plan,
    sized: &SizedLayers,
    limit: f64,
) -> Result<Fitted, Refusal> {
    let cutter = Cutter::new(request, plan, sized, &*configuration.policy);
    let mut nearest: Option<Refusal> = None;
    for partition in cutter.cuts() {
        let fitted = partition.and_then(|partition| {
            Cut { request, configuration, plan, sized, partition }.price(limit)
        });
        match fitted {
            Ok(fitted) => return Ok(fitted),
            Err(refusal) => {
                let missing = |refusal: &Refusal| refusal.missing.unwrap_or(u64::MAX);
                if nearest.as_ref().is_none_or(|nearest| missing(&refusal) < missing(nearest)) {
                    nearest = Some(refusal);
                }
            }
        }
    }
    Err(nearest.unwrap_or_else(|| Refusal {
        reason: "there is no partitioner to cut with: name at least one".to_owned(),
        missing: None,
    }))
}

/// A configuration that is cut.
pub(super) struct Cut<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) configuration: &'a Configuration,
    pub(super) plan: &'a Plan,
    pub(super) sized: &'a SizedLayers,
    pub(super) partition: Partition,
}

impl Cut<'_> {
    /// Simulates it, if it fits, unless it is bound to take longer than `limit`.
    pub(super) fn price(self, limit: f64) -> Result<Fitted, Refusal> {
        let retention = self.retention()?;
        let estimator = Estimator::new(self.request, self.sized, self.plan);
        let bound = estimator.bound(self.partition.ends(), &retention);
        if bound > limit {
            return Ok(Fitted::Bounded(bound));
        }
        let capacities = self.request.cluster.capacities(self.plan.ranks());
        let choice = self.simulate(&retention, capacities.as_deref())?;
        Ok(Fitted::Choice(choice))
    }

    /// Simulates it, whether or not it fits.
    pub(super) fn predict(self) -> Result<Choice, Refusal> {
        let retention = self.retention()?;
        self.simulate(&retention, None)
    }

    fn retention(&self) -> Result<Retention, Refusal> {
        Ok(decide(self.plan, &self.partition.sizes(), &*self.configuration.policy)?)
    }

    /// Simulates it. Refuses what ranks with these capacities have no memory for.
    fn simulate(
        self,
        retention: &Retention,
        capacities: Option<&[u64]>,
    ) -> Result<Choice, Refusal> {
        let Self { request, configuration, plan, sized, partition } = self;
        let program = Program::lower(plan, &edges(sized, &partition)?, retention)?;
        let stages =
            partition.ranges().map(|layers| request.profile.stage_of(layers, &sized.large));
        let stages: Option<Vec<StageMemory>> = stages.collect();
        let ranks = 0..plan.ranks();
        let misfit = |needed: &[u64]| capacities.and_then(|has| lacking(&partition, needed, has));
        if let Some(stages) = &stages {
            let needed: Vec<u64> =
                ranks.clone().map(|rank| program.peak_bytes(rank, stages)).collect();
            if let Some(refusal) = misfit(&needed) {
                return Err(refusal);
            }
        }
        let model = cost_model(request, plan, sized, &partition, retention);
        let timeline = simulate(&program, &model)?;
        let memory = stages.map(|stages| timeline.peak_bytes(&program, &stages));
        // Values that wait take memory as well.
        if let Some(refusal) = memory.as_deref().and_then(misfit) {
            return Err(refusal);
        }
        let most = ranks.map(|rank| program.peak_activations(rank)).max().unwrap_or(0);
        let samples = request.batch as f64 / configuration.micro_batches as f64;
        Ok(Choice {
            configuration: configuration.clone(),
            kept_samples: most as f64 * samples / configuration.stages_per_rank as f64,
            partition,
            seconds: timeline.makespan(),
            bubble: timeline.bubble().unwrap_or(0.0),
            idle: (0..plan.ranks()).map(|rank| timeline.idle(rank)).collect(),
            memory,
        })
    }
}

/// Says which rank lacks most, if one does.
fn lacking(partition: &Partition, needed: &[u64], has: &[u64]) -> Option<Refusal> {
    let lacks = |(rank, (needed, has)): (usize, (&u64, &u64))| {
        needed.checked_sub(*has).filter(|missing| *missing > 0).map(|missing| (rank, missing))
    };
    let lacking = needed.iter().zip(has).enumerate().filter_map(lacks);
    let (rank, missing) = lacking.max_by_key(|(_, missing)| *missing)?;
    let needed = needed[rank];
    Some(Refusal {
        reason: format!(
            "cut into {partition}, rank {rank} needs {needed} bytes and lacks {missing}"
        ),
        missing: Some(missing),
    })
}
