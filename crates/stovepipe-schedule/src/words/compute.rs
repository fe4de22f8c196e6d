//! Compute actions: a kind of work, on a stage, for a micro-batch.

use serde::{Deserialize, Serialize};

use crate::words::ids::{MicroBatch, Stage};

/// A kind of work that a stage does for one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ComputeKind {
    /// `F`: the forward pass.
    Forward,
    /// `R`: rebuild the activations of the stage's last dropped segment.
    Recompute,
    /// `B`: gradients of the input and of the weights.
    Backward,
    /// `I`: gradient of the input only.
    BackwardInput,
    /// `W`: gradients of the weights only.
    BackwardWeight,
}

impl ComputeKind {
    /// All kinds, in the order in which one micro-batch passes through them.
    pub const ALL: [Self; 5] =
        [Self::Forward, Self::Recompute, Self::Backward, Self::BackwardInput, Self::BackwardWeight];

    /// The letter of the text form.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Recompute => 'R',
            Self::Backward => 'B',
            Self::BackwardInput => 'I',
            Self::BackwardWeight => 'W',
        }
    }
}

/// One compute action: a kind, on a stage, for a micro-batch. Plans consist of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Compute {
    /// The kind of work.
    pub kind: ComputeKind,
    /// The stage that does it.
    pub stage: Stage,
    /// The micro-batch that it is done for.
    pub micro_batch: MicroBatch,
}

impl Compute {
    /// The action of `kind` on `stage` for `micro_batch`.
    #[must_use]
    pub fn new(kind: ComputeKind, stage: Stage, micro_batch: MicroBatch) -> Self {
        Self { kind, stage, micro_batch }
    }

    /// `F` on `stage` for `micro_batch`.
    #[must_use]
    pub fn forward(stage: Stage, micro_batch: MicroBatch) -> Self {
        Self::new(ComputeKind::Forward, stage, micro_batch)
    }

    /// `B` on `stage` for `micro_batch`.
    #[must_use]
    pub fn backward(stage: Stage, micro_batch: MicroBatch) -> Self {
        Self::new(ComputeKind::Backward, stage, micro_batch)
    }
}
