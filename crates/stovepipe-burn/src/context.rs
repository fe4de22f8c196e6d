//! What a layer is told beside its input.

use std::ops::Range;

/// Why a layer's forward runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// A training forward whose activations are kept, or of which only the output is wanted now.
    Train,
    /// The same forward once more, to rebuild activations. Must compute the same values; must not
    /// count anything twice.
    Recompute,
    /// Evaluation or inference: no backward follows.
    Evaluate,
}

/// What a layer is told beside its input.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    pub(crate) phase: Phase,
    pub(crate) step: u64,
    pub(crate) micro_batch: usize,
    pub(crate) samples: Range<usize>,
    pub(crate) layer: &'a str,
}

impl Context<'_> {
    /// Why the forward runs.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Number of the step, the same on every stage. Grows from step to step, evaluations included.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Which micro-batch of the mini-batch this is.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Which samples of the mini-batch the micro-batch holds.
    #[must_use]
    pub fn samples(&self) -> Range<usize> {
        self.samples.clone()
    }

    /// The layer's name in the model, like `blocks.3`.
    #[must_use]
    pub fn layer(&self) -> &str {
        self.layer
    }
}
