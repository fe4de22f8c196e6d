//! What layers need of a rank's memory, and what each rank has.
//!
//! It knows no schedule: how many micro-batches a part keeps at once is a plain input.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What one layer needs of its rank's memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerBytes {
    /// All the time: parameters, gradients, optimizer state.
    pub fixed: u64,
    /// For each micro-batch that the part keeps: activations that aren't recomputed.
    pub kept: u64,
    /// For each micro-batch that the part keeps, if it begins with this layer: the input from which
    /// the others are recomputed.
    pub entry: u64,
    /// While the part works on one micro-batch: activations that are recomputed.
    pub working: u64,
}

/// What each layer needs and each rank has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What each layer needs, in model order.
    pub layers: Vec<LayerBytes>,
    /// For each part, how many micro-batches it keeps at most.
    pub in_flight: Vec<usize>,
    /// For each rank, how many bytes it has.
    pub capacities: Vec<u64>,
}

impl Memory {
    /// What a part of these layers holds, and what it needs besides while it works. The parts of a
    /// rank work one at a time, so of the latter only the largest counts.
    pub(crate) fn of_part(&self, part: usize, layers: Range<usize>) -> (u64, u64) {
        let in_flight = u64::try_from(self.in_flight[part]).unwrap_or(u64::MAX);
        let entry = self.layers[layers.start].entry;
        let mut holds = entry.saturating_mul(in_flight);
        let mut works = 0u64;
        for layer in &self.layers[layers] {
            let kept = layer.kept.saturating_mul(in_flight);
            holds = holds.saturating_add(layer.fixed).saturating_add(kept);
            works = works.saturating_add(layer.working);
        }
        (holds, works)
    }

    /// What each rank needs for these parts, of which each is on the rank that `placement` says.
    pub(crate) fn needed(
        &self,
        placement: &[usize],
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Vec<u64> {
        let ranks = self.capacities.len();
        let mut holds = vec![0u64; ranks];
        let mut works = vec![0u64; ranks];
        for ((part, layers), &rank) in parts.enumerate().zip(placement) {
            let (held, working) = self.of_part(part, layers);
            holds[rank] = holds[rank].saturating_add(held);
            works[rank] = works[rank].max(working);
        }
        holds.into_iter().zip(works).map(|(held, working)| held.saturating_add(working)).collect()
    }
}
