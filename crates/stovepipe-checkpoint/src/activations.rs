//! The two sides that a policy weighs: the bytes of keeping, and the time of computing again.

use stovepipe_schedule::LayerMemory;

/// The price of keeping a layer's activations, and of computing them again, for one micro-batch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LayerActivations {
    /// Its bytes. Gradients don't count.
    pub memory: LayerMemory,
    /// The time of its forward, in any unit.
    pub recompute: f64,
}
