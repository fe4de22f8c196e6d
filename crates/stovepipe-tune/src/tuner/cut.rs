//! Cuts the layers into the stages of a plan, by time and within the ranks' memory.

use stovepipe_checkpoint::{CheckpointPolicy, decide};
use stovepipe_partition::{
    Costs, LayerBytes, Memory, Partition, PartitionError, Partitioner, PartitionerFacts,
    partitioner_named,
};
use stovepipe_schedule::{MicroBatch, Plan, Stage};

use super::refusal::Refusal;
use super::request::Request;
use crate::profile::{LayerCost, LayerProfile};

/// The bounds of what layers need, between which a cut is sought: exact numbers are only known once
/// it is made, and checked then.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Bound {
    /// So much at least: excludes no cut that fits.
    Least,
    /// So much at most, what segments of a stage hold apart.
    Most,
}

/// The activations that a policy drops, before the layers are cut.
struct Probe {
    /// The part of all work that is done twice.
    recomputed: f64,
    /// Whether nothing but whole stages is dropped.
    whole: bool,
}

/// Cuts the layers, whose costs are those of the larger size, for a plan and a policy.
pub(super) fn cut(
    request: &Request<'_>,
    partitioner: &str,
    plan: &Plan,
    policy: &dyn CheckpointPolicy,
    costs: &[LayerCost],
    bound: Bound,
) -> Result<Partition, Refusal> {
    let probe = probe(plan, policy, costs.len());
    let time = |cost: &LayerCost| cost.forward + cost.backward + probe.recomputed * cost.recompute;
    let times = Costs::new(costs.iter().map(time).collect::<Vec<_>>())?;
    let placement: Vec<usize> = plan.placement().iter().map(|rank| rank.index()).collect();
    let mut facts = PartitionerFacts::default()
        .with_placement(placement)
        .with_speeds(&request.cluster.speeds[..plan.ranks()]);
    if let Some(capacities) = &request.cluster.memory {
        let capacities = &capacities[..plan.ranks()];
        facts = facts.with_memory(memory(request, plan, &probe, costs, capacities, bound));
    }
    let partition = partitioner_named(partitioner, &facts)?.partition(&times, plan.stages());
    partition.map_err(|error| Refusal { missing: missing(&error), reason: error.to_string() })
}

/// The bytes that layers need within the bound, and that ranks have.
fn memory(
    request: &Request<'_>,
    plan: &Plan,
    probe: &Probe,
    costs: &[LayerCost],
    capacities: &[u64],
    bound: Bound,
) -> Memory {
    let layers = request.profile.layers().iter().zip(costs);
    let working = |cost: &LayerCost| cost.memory.map_or(0, |memory| memory.working());
    let temporary = match bound {
        Bound::Least => 0,
        Bound::Most => costs.iter().map(working).max().unwrap_or(0),
    };
    Memory {
        layers: layers.map(|(layer, cost)| layer_bytes(layer, cost, probe, bound)).collect(),
        in_flight: match bound {
            // Stages of one rank needn't hold most at the same time.
            Bound::Least => plan.activations_at_peak(),
            Bound::Most => plan.stage_activations(),
        },
        capacities: capacities.iter().map(|bytes| bytes.saturating_sub(temporary)).collect(),
    }
}

fn layer_bytes(layer: &LayerProfile, cost: &LayerCost, probe: &Probe, bound: Bound) -> LayerBytes {
    let activations = cost.memory.map_or(0, |memory| memory.activations);
    let held = match bound {
        Bound::Least => layer.lasting_bytes(),
        Bound::Most => layer.fixed_bytes(),
    };
    let fixed = LayerBytes { fixed: held, ..LayerBytes::default() };
    match (probe.recomputed > 0.0, probe.whole) {
        (false, _) => LayerBytes { kept: activations, ..fixed },
        (true, true) => LayerBytes { entry: cost.input_bytes, working: activations, ..fixed },
        // What segments of a stage hold is only known once it is cut.
        (true, false) => fixed,
    }
}

/// Asks the policy what it drops if the layers are cut evenly.
fn probe(plan: &Plan, policy: &dyn CheckpointPolicy, layers: usize) -> Probe {
    let stages = plan.stages();
    let end = |stage: usize| stage * layers / stages;
    let sizes: Vec<usize> = (0..stages).map(|s| (end(s + 1) - end(s)).max(1)).collect();
    let Ok(retention) = decide(plan, &sizes, policy) else {
        // It may still agree to the cut that is made.
        return Probe { recomputed: 1.0, whole: false };
    };
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

/// The bytes that the rank lacks which lacks most.
fn missing(error: &PartitionError) -> Option<u64> {
    let (PartitionError::DoesNotFit { needed, memory, .. }
    | PartitionError::NotFound { needed, memory, .. }) = error
    else {
        return None;
    };
    needed.iter().zip(memory).map(|(needed, has)| needed.saturating_sub(*has)).max()
}
