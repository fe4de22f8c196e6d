//! The costs with which a cut is simulated.

use std::collections::BTreeMap;

use stovepipe_partition::Partition;
use stovepipe_schedule::{
    CostModel, Edge, Edges, Handling, Link, MicroBatch, Plan, PlanError, Retention, Stage,
    StageCost, StageRetention,
};

use super::bound::gathers;
use super::request::Request;
use super::sized::SizedLayers;

/// The edges that values travel along: the chain, and one for each pair of other stages with a
/// skip.
pub(super) fn edges(sized: &SizedLayers, partition: &Partition) -> Result<Edges, PlanError> {
    sized.skips.iter().try_fold(Edges::chain(partition.parts()), |edges, skip| {
        let (from, to) = (partition.part_of(skip.from), partition.part_of(skip.to));
        if to > from + 1 { edges.with_skip(Stage::new(from), Stage::new(to)) } else { Ok(edges) }
    })
}

/// The bytes of the messages along each edge.
fn bytes_of_edges(sized: &SizedLayers, partition: &Partition) -> BTreeMap<Edge, u64> {
    let edge = |from: usize, to: usize| Edge { from: Stage::new(from), to: Stage::new(to) };
    let ends = partition.ends().iter().copied().enumerate();
    let chain = ends.take(partition.parts() - 1);
    let mut bytes: BTreeMap<Edge, u64> =
        chain.map(|(stage, end)| (edge(stage, stage + 1), sized.boundary(end))).collect();
    for skip in &sized.skips {
        let (from, to) = (partition.part_of(skip.from), partition.part_of(skip.to));
        if from != to {
            let all = bytes.entry(edge(from, to)).or_default();
            *all = all.saturating_add(skip.bytes);
        }
    }
    bytes
}

/// The costs of the stages at both sizes with what is recomputed, of updates, links, messages and
/// gathers.
pub(super) fn cost_model(
    request: &Request<'_>,
    plan: &Plan,
    sized: &SizedLayers,
    partition: &Partition,
    retention: &Retention,
) -> CostModel {
    let cluster = request.cluster;
    let rank = |stage: Stage| plan.placement()[stage.index()].index();
    let of = |stage: Stage, m: MicroBatch| {
        let layers = partition.range(stage.index());
        let (class, speed) = (sized.class(m.index()), cluster.speed(rank(stage)));
        let times = sized.times(class, &layers);
        let again = recomputed(sized, class, layers.start, retention.of(stage, m));
        StageCost {
            recompute: again.last / speed,
            update: sized.updates(&layers) / speed,
            ..StageCost::new(times.forward / speed, (times.backward + again.others) / speed)
        }
    };
    let stages = || Stage::first(plan.stages());
    let last = MicroBatch::new(plan.micro_batches() - 1);
    let usual: Vec<StageCost> = stages().map(|stage| of(stage, last)).collect();
    let mut model = CostModel::new(usual.clone());
    for (stage, usual) in stages().zip(usual) {
        for m in MicroBatch::first(plan.micro_batches()) {
            let own = of(stage, m);
            if own != usual {
                model = model.with_micro_batch(stage, m, own);
            }
        }
    }
    let ranks = plan.ranks();
    let messages = bytes_of_edges(sized, partition).into_iter().map(|(edge, bytes)| {
        let wire = cluster.wire(rank(edge.from), rank(edge.to));
        let link = Link::of_bytes(wire.latency, bytes as f64, wire.bandwidth);
        (edge, link, cluster.message_costs().of(bytes))
    });
    model = with_messages(model, &messages.collect::<Vec<_>>());
    if let Some(nodes) = (0..ranks).map(|rank| cluster.node(rank)).collect::<Option<Vec<_>>>() {
        model = model.with_nodes(nodes);
    }
    model.with_gathers(gathers(request, ranks))
}

/// Gives every edge its link and handling; one for all where they are the same, which is quicker.
fn with_messages(mut model: CostModel, messages: &[(Edge, Link, Handling)]) -> CostModel {
    let Some((_, link, handling)) = messages.first() else { return model };
    model = model.with_link(*link).with_handling(*handling);
    for (edge, own, own_handling) in messages {
        if own != link {
            model = model.with_edge_link(*edge, *own);
        }
        if own_handling != handling {
            model = model.with_edge_handling(*edge, *own_handling);
        }
    }
    model
}

/// The seconds in which segments are rebuilt: the last one by `R`, the others in the backward.
struct Recomputed {
    last: f64,
    others: f64,
}

fn recomputed(
    sized: &SizedLayers,
    class: usize,
    first: usize,
    retention: &StageRetention,
) -> Recomputed {
    let dropped = retention.dropped().iter();
    let mut times = dropped
        .map(|segment| sized.recompute(class, &(first + segment.start..first + segment.end)));
    let last = times.next_back().unwrap_or(0.0);
    Recomputed { last, others: times.sum() }
}
