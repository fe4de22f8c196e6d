//! Cuts the layers into the stages of a plan, by time and within the ranks' memory.

use stovepipe_checkpoint::{CheckpointPolicy, decide};
use stovepipe_partition::{
    Costs, LayerBytes, Memory, Partition, PartitionError, Partitioner, PartitionerFacts,
    partitioner_named, partitioners,
};
use stovepipe_schedule::{MicroBatch, Plan, Stage};

use super::bound::Estimator;
use super::refusal::Refusal;
use super::request::Request;
use super::room::lacking_in_order;
use super::sized::SizedLayers;
use crate::profile::{LayerCost, LayerProfile};

/// The bounds of what layers need, between which a cut is sought: exact numbers are only known once
/// it is made, and checked then.
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    /// So much at least: excludes no cut that fits.
    Least,
    /// So much at most, what segments of a stage hold apart.
    Most,
}

/// The activations that a policy drops, before the layers are cut.
struct Probe {
    /// The part of each stage's work that is done twice.
    shares: Vec<f64>,
    /// Whether nothing but whole stages is dropped.
    whole: bool,
}

/// Cuts the layers for a plan and a policy.
pub(super) struct Cutter<'a> {
    request: &'a Request<'a>,
    plan: &'a Plan,
    sized: &'a SizedLayers,
    probe: Probe,
}

impl<'a> Cutter<'a> {
    pub(super) fn new(
        request: &'a Request<'a>,
        plan: &'a Plan,
        sized: &'a SizedLayers,
        policy: &dyn CheckpointPolicy,
    ) -> Self {
        Self { request, plan, sized, probe: probe(plan, policy, sized.layers()) }
    }

    /// Cuts to try one after the other, until one fits: those of the partitioners that are asked
    /// for. Otherwise of few cuts these are all, those with the shortest estimated step first. Of
    /// many they are what partitioners find, shifted to where the estimate is shorter.
    pub(super) fn cuts(&self) -> Box<dyn Iterator<Item = Result<Partition, Refusal>> + '_> {
        const BOUNDS: [Bound; 2] = [Bound::Least, Bound::Most];
        if let Some(names) = &self.request.partitioners {
            let found = names.iter().flat_map(|name| BOUNDS.map(|bound| (name, bound)));
            return Box::new(found.map(|(name, bound)| self.partitioned(name, bound)));
        }
        if let Some(refusal) = self.lacking() {
            return Box::new(std::iter::once(Err(refusal)));
        }
        let names = partitioners().iter().filter(|named| named.tuned).map(|named| named.name);
        let found = names.flat_map(|name| BOUNDS.map(|bound| (name, bound)));
        let found = found.flat_map(|(name, bound)| match self.partitioned(name, bound) {
            Ok(partition) => vec![Ok(self.improved(partition.clone(), bound)), Ok(partition)],
            Err(refusal) => vec![Err(refusal)],
        });
        // What partitioners say comes last: it tells what is missing.
        Box::new(self.all_if_few().into_iter().map(Ok).chain(found))
    }

    /// The bytes that one stage on each rank lacks however the layers are cut.
    fn lacking(&self) -> Option<Refusal> {
        let ranks = self.plan.ranks();
        let capacities = self.request.cluster.capacities(ranks)?;
        if self.plan.stages() > ranks {
            return None;
        }
        let Memory { layers, in_flight, .. } = self.memory(&capacities, Bound::Least);
        // A cut may need more, but none less.
        let order: Vec<u64> = self.placement().iter().map(|rank| capacities[*rank]).collect();
        let bytes = |stage: usize, layer: usize| {
            let kept = layers[layer].kept.saturating_mul(in_flight[stage] as u64);
            layers[layer].fixed.saturating_add(kept)
        };
        let missing = lacking_in_order(layers.len(), &order, bytes)?;
        let reason = format!(
            "some of {ranks} ranks lacks at least {missing} bytes for parameters, optimizer state and \
             activations"
        );
        Some(Refusal { reason, missing: Some(missing) })
    }

    /// All cuts that may fit, those with the shortest estimated step first, if there are few.
    fn all_if_few(&self) -> Vec<Partition> {
        /// So many are few, and fewer if plans are large.
        const FEW: usize = 256;
        const ACTIONS: usize = 1_000_000;
        let (layers, stages) = (self.sized.layers(), self.plan.stages());
        let actions = 2 * stages * self.sized.micro_batches;
        if number_of_cuts(layers, stages) > FEW.min(ACTIONS / actions) {
            return Vec::new();
        }
        let estimator = Estimator::new(self.request, self.sized, self.plan);
        let fits = self.fitting(Bound::Least);
        let mut all = all_cuts(layers, stages);
        all.retain(|ends| fits(ends));
        all.sort_by_cached_key(|ends| {
            estimator.with_shares(ends, &self.probe.shares).max(0.0).to_bits()
        });
        all.iter().filter_map(|ends| of_ends(ends)).collect()
    }

    /// Says whether ranks have the bytes that the layers of a cut need within a bound.
    fn fitting(&self, bound: Bound) -> impl Fn(&[usize]) -> bool {
        let capacities = self.request.cluster.capacities(self.plan.ranks());
        let memory = capacities.map(|capacities| self.memory(&capacities, bound));
        let placement = self.placement();
        move |ends| {
            let Some(memory) = &memory else { return true };
            let needed = of_ends(ends).map(|partition| memory.needed(&partition, &placement));
            needed.is_some_and(|needed| needed.iter().zip(&memory.capacities).all(|(n, c)| n <= c))
        }
    }

    /// Cuts them with a partitioner.
    fn partitioned(&self, partitioner: &str, bound: Bound) -> Result<Partition, Refusal> {
        let (plan, cluster) = (self.plan, self.request.cluster);
        let mut facts =
            PartitionerFacts::default().with_placement(self.placement()).with_speeds(self.speeds());
        if let Some(costs) = self.cut_costs() {
            facts = facts.with_cut_costs(costs);
        }
        if let Some(capacities) = cluster.capacities(plan.ranks()) {
            facts = facts.with_memory(self.memory(&capacities, bound));
        }
        let times = Costs::new(self.times())?;
        let partition = partitioner_named(partitioner, &facts)?.partition(&times, plan.stages());
        partition.map_err(|error| Refusal { missing: missing(&error), reason: error.to_string() })
    }

    fn placement(&self) -> Vec<usize> {
        self.plan.placement().iter().map(|rank| rank.index()).collect()
    }

    /// The mean part of all work that is done twice.
    fn mean_share(&self) -> f64 {
        self.probe.shares.iter().sum::<f64>() / self.probe.shares.len() as f64
    }

    /// The time of each layer for one micro-batch, recomputed as often as on average, and of its
    /// update.
    fn times(&self) -> Vec<f64> {
        let (count, share) = (self.sized.micro_batches as f64, self.mean_share());
        let time = |layer: usize| {
            let layer = layer..layer + 1;
            (self.sized.work(&layer, share) + self.sized.updates(&layer)) / count
        };
        (0..self.sized.layers()).map(time).collect()
    }

    /// The ranks' speeds for such layers: one that recomputes less is faster.
    fn speeds(&self) -> Vec<f64> {
        let all = 0..self.sized.layers();
        let work = |share: f64| self.sized.work(&all, share);
        let mean = work(self.mean_share());
        let speed = |rank: usize| {
            let stages = self.plan.stages_of(rank);
            let shares = stages.iter().map(|stage| self.probe.shares[stage.index()]);
            let own = work(shares.sum::<f64>() / stages.len() as f64);
            let factor = if own > 0.0 && mean > 0.0 { mean / own } else { 1.0 };
            factor * self.request.cluster.speed(rank)
        };
        (0..self.plan.ranks()).map(speed).collect()
    }

    /// The time that a cut between two layers costs the ranks on both sides of it for one
    /// micro-batch: each sends a message and receives one.
    fn cut_costs(&self) -> Option<Vec<f64>> {
        let costs = self.request.cluster.message_costs();
        let cost = |cut: usize| {
            let across = self.sized.skips.iter().filter(|skip| skip.from < cut && cut <= skip.to);
            let bytes = across.map(|skip| skip.bytes);
            let bytes = bytes.fold(self.sized.boundary(cut), u64::saturating_add);
            let handling = costs.of(bytes);
            handling.send + handling.receive
        };
        let costs: Vec<f64> = (1..self.sized.layers()).map(cost).collect();
        costs.iter().any(|cost| *cost > 0.0).then_some(costs)
    }

    /// The bytes that layers need, and that ranks have.
    fn memory(&self, capacities: &[u64], bound: Bound) -> Memory {
        let costs = &self.sized.large;
        let layers = self.request.profile.layers().iter().zip(costs);
        let working = |cost: &LayerCost| cost.memory.map_or(0, |memory| memory.working());
        let at_most = bound == Bound::Most;
        let temporary = if at_most { costs.iter().map(working).max().unwrap_or(0) } else { 0 };
        Memory {
            layers: layers.map(|(layer, cost)| self.layer_bytes(layer, cost, at_most)).collect(),
            // Stages of one rank needn't hold most at the same time.
            in_flight: match at_most {
                false => self.plan.activations_at_peak(),
                true => self.plan.stage_activations(),
            },
            capacities: capacities.iter().map(|bytes| bytes.saturating_sub(temporary)).collect(),
        }
    }

    fn layer_bytes(&self, layer: &LayerProfile, cost: &LayerCost, at_most: bool) -> LayerBytes {
        let activations = cost.memory.map_or(0, |memory| memory.activations);
        let held = if at_most { layer.fixed_bytes() } else { layer.lasting_bytes() };
        let fixed = LayerBytes { fixed: held, ..LayerBytes::default() };
        let keeps_all = self.probe.shares.iter().all(|share| *share == 0.0);
        match (keeps_all, self.probe.whole) {
            (true, _) => LayerBytes { kept: activations, ..fixed },
            (false, true) => LayerBytes { entry: cost.input_bytes, working: activations, ..fixed },
            // What segments of a stage hold is only known once it is cut.
            (false, false) => fixed,
        }
    }

    /// Shifts cuts, alone or several in a row, for as long as that shortens the estimated step and
    /// keeps within the memory there is.
    fn improved(&self, partition: Partition, bound: Bound) -> Partition {
        /// With more stages than these only single cuts are shifted.
        const MANY: usize = 24;
        let estimator = Estimator::new(self.request, self.sized, self.plan);
        let time = |ends: &[usize]| estimator.with_shares(ends, &self.probe.shares);
        let fits = self.fitting(bound);
        let mut ends = partition.ends().to_vec();
        let mut best = time(&ends);
        let cuts = estimator.stages() - 1;
        let longest_row = if cuts < MANY { cuts } else { 1 };
        let mut improved = true;
        while improved {
            improved = false;
            for first in 0..cuts {
                for last in first..cuts.min(first + longest_row) {
                    for up in [false, true] {
                        let Some(moved) = shifted(&ends, first..last + 1, up) else { continue };
                        let found = time(&moved);
                        if found < best * (1.0 - 1e-12) && fits(&moved) {
                            (best, ends, improved) = (found, moved, true);
                        }
                    }
                }
            }
        }
        of_ends(&ends).unwrap_or(partition)
    }
}

/// The number of ways to cut so many layers into so many stages, or a very large number.
pub(super) fn number_of_cuts(layers: usize, stages: usize) -> usize {
    let ways =
        (1..stages).try_fold(1usize, |ways, cut| Some(ways.checked_mul(layers - cut)? / cut));
    ways.unwrap_or(usize::MAX)
}

/// All ways to cut so many layers into so many stages, as the ends of the stages.
pub(super) fn all_cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    let mut cuts = vec![Vec::new()];
    for stage in 1..=stages {
        let longer = |ends: &Vec<usize>| {
            let start = ends.last().copied().unwrap_or(0);
            let last = layers - (stages - stage);
            let first = if stage == stages { last } else { start + 1 };
            let with = |end| ends.iter().copied().chain([end]).collect::<Vec<usize>>();
            (first..=last).map(with).collect::<Vec<_>>()
        };
        cuts = cuts.iter().flat_map(longer).collect();
    }
    cuts
}

/// The partition whose parts end so, unless one is empty.
pub(super) fn of_ends(ends: &[usize]) -> Option<Partition> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let sizes: Option<Vec<usize>> =
        starts.zip(ends).map(|(start, end)| end.checked_sub(start)).collect();
    Partition::from_sizes(sizes?).ok()
}

/// Shifts cuts in a row by one layer, if every stage keeps one.
pub(super) fn shifted(
    ends: &[usize],
    cuts: std::ops::Range<usize>,
    up: bool,
) -> Option<Vec<usize>> {
    let mut moved = ends.to_vec();
    for end in &mut moved[cuts.clone()] {
        *end = if up { *end + 1 } else { end.checked_sub(1)? };
    }
    let before = cuts.start.checked_sub(1).map_or(0, |stage| moved[stage]);
    (before < moved[cuts.start] && moved[cuts.end - 1] < moved[cuts.end]).then_some(moved)
}

/// Asks the policy what it drops if the layers are cut evenly.
fn probe(plan: &Plan, policy: &dyn CheckpointPolicy, layers: usize) -> Probe {
    let stages = plan.stages();
    let end = |stage: usize| stage * layers / stages;
    let sizes: Vec<usize> = (0..stages).map(|s| (end(s + 1) - end(s)).max(1)).collect();
    let Ok(retention) = decide(plan, &sizes, policy) else {
        // It may still agree to the cut that is made.
        return Probe { shares: vec![1.0; stages], whole: false };
    };
    let mut whole = true;
    let share = |(stage, &size): (Stage, &usize)| {
        let dropped = MicroBatch::first(plan.micro_batches()).map(|m| {
            let segments = retention.of(stage, m).dropped();
            whole &= matches!(segments, []) || segments.iter().eq([&(0..size)]);
            segments.iter().map(ExactSizeIterator::len).sum::<usize>()
        });
        dropped.sum::<usize>() as f64 / (size * plan.micro_batches()) as f64
    };
    let shares = Stage::first(stages).zip(&sizes).map(share).collect();
    Probe { shares, whole }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_counted_and_listed() {
        for (layers, stages, count) in [(5, 1, 1), (5, 3, 6), (48, 2, 47), (48, 48, 1)] {
            assert_eq!(number_of_cuts(layers, stages), count);
            let all = all_cuts(layers, stages);
            assert_eq!(all.len(), count);
            assert!(all.iter().all(|ends| of_ends(ends).is_some_and(|p| p.layers() == layers)));
        }
        assert_eq!(number_of_cuts(2000, 900), usize::MAX);
        assert_eq!(all_cuts(4, 3), [[1, 2, 4], [1, 3, 4], [2, 3, 4]]);
    }

    #[test]
    fn cuts_are_shifted_as_long_as_every_stage_keeps_a_layer() {
        assert_eq!(shifted(&[2, 3, 5], 0..1, false), Some(vec![1, 3, 5]));
        assert_eq!(shifted(&[2, 3, 5], 0..2, true), Some(vec![3, 4, 5]));
        assert_eq!(shifted(&[2, 3, 5], 0..1, true), None);
        assert_eq!(shifted(&[1, 3, 5], 0..1, false), None);
        assert_eq!(shifted(&[2, 4, 5], 1..2, true), None);
    }
}
