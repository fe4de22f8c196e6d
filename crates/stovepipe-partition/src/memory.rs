//! The memory that layers need, and that ranks have.
//!
//! It knows no schedule: how many micro-batches a part keeps at once is a plain input.

use serde::{Deserialize, Serialize};

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
