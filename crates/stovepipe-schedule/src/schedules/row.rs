//! Writes the row of a rank in a V-shaped schedule. Micro-batches are counted here, so that a
//! schedule only says what comes next.

use std::collections::VecDeque;

use crate::words::compute::{Compute, ComputeKind};
use crate::words::ids::{MicroBatch, Stage};

/// One of the two ways of a micro-batch through the ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the first rank to the last, on the stages 0 to P−1.
    Down,
    /// Back to the first rank, on the stages P to 2P−1.
    Up,
}

/// The row of a rank that holds a stage on the way down and its mirror image on the way up.
pub(super) struct Row {
    stages: [Stage; 2],
    micro_batches: usize,
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// Input gradients whose weight gradients are still to come, oldest first.
    deferred: VecDeque<(Way, usize)>,
    actions: Vec<Compute>,
}

impl Row {
    pub(super) fn new(rank: usize, ranks: usize, micro_batches: usize) -> Self {
        Self {
            stages: [Stage::new(rank), Stage::new(2 * ranks - 1 - rank)],
            micro_batches,
            forwards: [0; 2],
            backwards: [0; 2],
            deferred: VecDeque::new(),
            actions: Vec::with_capacity(6 * micro_batches),
        }
    }

    /// How many forwards there are on this way.
    pub(super) fn forwards(&self, way: Way) -> usize {
        self.forwards[way as usize]
    }

    /// The forward of the next micro-batch.
    pub(super) fn forward(&mut self, way: Way) {
        let m = next(&mut self.forwards[way as usize]);
        self.push(ComputeKind::Forward, way, m);
    }

    /// The whole backward of the next micro-batch.
    pub(super) fn backward(&mut self, way: Way) {
        let m = next(&mut self.backwards[way as usize]);
        self.push(ComputeKind::Backward, way, m);
    }

    /// The input gradient of the next micro-batch; its weight gradient is deferred.
    pub(super) fn input(&mut self, way: Way) {
        let m = next(&mut self.backwards[way as usize]);
        self.deferred.push_back((way, m));
        self.push(ComputeKind::BackwardInput, way, m);
    }

    /// The oldest deferred weight gradient, of the given way if one is given; whether there was
    /// one.
    pub(super) fn weight(&mut self, way: Option<Way>) -> bool {
        let fits = |(other, _): &(Way, usize)| way.is_none_or(|way| *other == way);
        let oldest = self.deferred.iter().position(fits).and_then(|i| self.deferred.remove(i));
        if let Some((way, m)) = oldest {
            self.push(ComputeKind::BackwardWeight, way, m);
        }
        oldest.is_some()
    }

    /// The written row.
    pub(super) fn into_actions(self) -> Vec<Compute> {
        self.actions
    }

    /// A micro-batch that the plan doesn't have is counted but left out.
    fn push(&mut self, kind: ComputeKind, way: Way, m: usize) {
        if m < self.micro_batches {
            self.actions.push(Compute::new(kind, self.stages[way as usize], MicroBatch::new(m)));
        }
    }
}

fn next(count: &mut usize) -> usize {
    *count += 1;
    *count - 1
}
