//! [`StageCost`]: the time that a stage's actions take.

use serde::{Deserialize, Serialize};

use crate::words::compute::ComputeKind;

/// The time of each kind of action on one stage, in any unit, the same everywhere.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageCost {
    /// `F`.
    pub forward: f64,
    /// `B`, the whole backward without recomputation.
    pub backward: f64,
    /// The part of `B` that `W` takes when the backward is split; `I` takes the rest.
    pub weight_grad: f64,
    /// `R`.
    pub recompute: f64,
    /// The optimizer's step on this stage.
    pub update: f64,
}

impl StageCost {
    /// Forward and backward; recomputation costs a forward, `W` half of the backward, the update
    /// nothing.
    #[must_use]
    pub fn new(forward: f64, backward: f64) -> Self {
        Self { forward, backward, weight_grad: backward / 2.0, recompute: forward, update: 0.0 }
    }

    pub(super) fn time(&self, kind: ComputeKind) -> f64 {
        match kind {
            ComputeKind::Forward => self.forward,
            ComputeKind::Recompute => self.recompute,
            ComputeKind::Backward => self.backward,
            ComputeKind::BackwardInput => self.backward - self.weight_grad,
            ComputeKind::BackwardWeight => self.weight_grad,
        }
    }

    pub(super) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("weight gradient", self.weight_grad),
            ("input gradient", self.backward - self.weight_grad),
            ("recomputation", self.recompute),
            ("update", self.update),
        ]
    }
}
