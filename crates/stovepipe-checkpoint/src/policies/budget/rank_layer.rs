//! The bytes of a rank's layers: kept, or dropped in segments and rebuilt.

use std::ops::Range;

use stovepipe_schedule::Plan;

use crate::activations::LayerActivations;

/// One layer of a rank, in the order of its stages. Its *place* is its number among them.
#[derive(Clone, Copy)]
pub(super) struct RankLayer {
    pub(super) layer: LayerActivations,
    /// Micro-batches in flight.
    pub(super) in_flight: u64,
    /// The first place of its stage.
    pub(super) start: usize,
    /// Whether it is the last one.
    pub(super) ends: bool,
    /// The bytes of all layers before it.
    pub(super) before: u64,
}

impl RankLayer {
    /// The bytes that all micro-batches in flight hold if its activations are kept. Its output is
    /// the next layer's input, and behind the last one stays on its tape.
    pub(super) fn kept(&self) -> u64 {
        let output = if self.ends { self.layer.memory.output } else { 0 };
        self.in_flight.saturating_mul(self.layer.memory.activations.saturating_add(output))
    }

    /// The bytes that all micro-batches in flight hold if a dropped segment begins with it.
    pub(super) fn entry(&self) -> u64 {
        self.layer.memory.input.saturating_mul(self.in_flight)
    }
}

/// The layers of a rank, where each stage has a range of all layers.
pub(super) fn rank_layers(
    layers: &[LayerActivations],
    plan: &Plan,
    rank: usize,
    ranges: &[Range<usize>],
) -> Vec<RankLayer> {
    let in_flight = plan.stage_activations();
    let mut places = Vec::new();
    let mut before = 0u64;
    for stage in plan.stages_of(rank) {
        let start = places.len();
        let own = &layers[ranges[stage.index()].clone()];
        for (number, &layer) in own.iter().enumerate() {
            places.push(RankLayer {
                layer,
                in_flight: in_flight[stage.index()] as u64,
                start,
                ends: number + 1 == own.len(),
                before,
            });
            before = before.saturating_add(layer.memory.activations);
        }
    }
    places
}

/// The bytes that are rebuilt of a dropped segment, its output included and its kept input not
/// counted again.
pub(super) fn rebuilt_bytes(places: &[RankLayer]) -> u64 {
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return 0 };
    let bytes =
        last.before.saturating_add(last.layer.memory.activations).saturating_sub(first.before);
    bytes.saturating_add(last.layer.memory.output).saturating_sub(first.layer.memory.input)
}

/// Sizes, ascending, or if there are too many some of them: the largest, none at all, and `leanest`
/// included.
pub(super) fn thinned_sizes(sizes: Vec<u64>, most: usize, leanest: u64) -> Vec<u64> {
    let step = sizes.len().div_ceil(most);
    let last = sizes.len() - 1;
    let stays = |(place, size): &(usize, u64)| {
        (last - place).is_multiple_of(step) || *size == 0 || *size == leanest
    };
    sizes.into_iter().enumerate().filter(stays).map(|(_, size)| size).collect()
}

/// The fewest bytes that are kept with segments that rebuild at most `largest`.
pub(super) fn least_kept(places: &[RankLayer], largest: u64) -> u64 {
    let mut least = vec![0u64];
    for end in 1..=places.len() {
        let place = places[end - 1];
        let mut fewest = least[end - 1].saturating_add(place.kept());
        for start in (place.start..end).rev() {
            if rebuilt_bytes(&places[start..end]) > largest {
                break;
            }
            fewest = fewest.min(least[start].saturating_add(places[start].entry()));
        }
        least.push(fewest);
    }
    least[places.len()]
}
