//! The memory that layers need, and that ranks have.
//!
//! It knows no schedule: how many micro-batches a part keeps at once is a plain input.

use serde::{Deserialize, Serialize};

use crate::partition::Partition;

/// The bytes that one layer needs of its rank's memory, as terms that a part adds up.
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

impl LayerBytes {
    /// The bytes that a part holds for this layer, wherever it stands in it, with so many
    /// micro-batches.
    pub(crate) fn held(&self, micro_batches: u64) -> u64 {
        self.fixed.saturating_add(self.kept.saturating_mul(micro_batches))
    }
}

/// The needs of each layer, and the capacity of each rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The needs of each layer, in model order.
    pub layers: Vec<LayerBytes>,
    /// For each part, how many micro-batches it keeps at most.
    pub in_flight: Vec<usize>,
    /// For each rank, how many bytes it has.
    pub capacities: Vec<u64>,
}

impl Memory {
    /// The bytes that each rank needs for a partition whose parts are on these ranks. Parts of a
    /// rank work one at a time, so of what they need for that only the largest counts.
    ///
    /// # Panics
    ///
    /// If there are no bytes for a layer, no number in flight or no rank for a part.
    #[must_use]
    pub fn needed(&self, partition: &Partition, placement: &[usize]) -> Vec<u64> {
        let ranks = placement.iter().max().map_or(0, |last| last + 1);
        let (mut holds, mut works) = (vec![0u64; ranks], vec![0u64; ranks]);
        for (part, range) in partition.ranges().enumerate() {
            let (rank, kept) = (placement[part], self.in_flight[part] as u64);
            let layers = &self.layers[range];
            let entry = layers.first().map_or(0, |first| first.entry.saturating_mul(kept));
            let held = layers.iter().map(|layer| layer.held(kept));
            holds[rank] = held.fold(holds[rank].saturating_add(entry), u64::saturating_add);
            let working = layers.iter().map(|layer| layer.working).fold(0, u64::saturating_add);
            works[rank] = works[rank].max(working);
        }
        holds.into_iter().zip(works).map(|(held, working)| held.saturating_add(working)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_rank_add_up_and_work_in_turn() {
        let layer = |fixed, kept| LayerBytes { fixed, kept, entry: 2, working: fixed / 10 };
        let memory = Memory {
            layers: vec![layer(100, 5), layer(200, 6), layer(300, 7)],
            in_flight: vec![4, 3, 2],
            capacities: vec![0; 2],
        };
        let partition = Partition::from_sizes([1, 1, 1]).expect("a partition");
        let first = 100 + 4 * 5 + 4 * 2;
        let last = 300 + 2 * 7 + 2 * 2;
        let middle = 200 + 3 * 6 + 3 * 2 + 20;
        assert_eq!(memory.needed(&partition, &[0, 1, 0]), [first + last + 30, middle]);
    }
}
