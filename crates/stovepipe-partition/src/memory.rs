//! What layers need of a rank's memory, and what each rank has.
//!
//! It knows no schedule: how many micro-batches a part keeps at once is a plain input.

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
