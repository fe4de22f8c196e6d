//! The bytes of layers and stages, and how they come and go while a stage runs.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::program::retention::StageRetention;

/// The bytes of a layer, for one micro-batch.
///
/// The last three are peaks, above what was there when the forward or backward began. Where they
/// aren't known and zero, only what stays is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayerMemory {
    /// Needed by its backward, its input included and its output not.
    pub activations: u64,
    /// Its input alone.
    pub input: u64,
    /// Its output alone.
    pub output: u64,
    /// The gradients of its parameters, which stay from its first backward until the update.
    pub gradients: u64,
    /// While its forward runs, with what it leaves on the tape.
    pub forward: u64,
    /// While its forward runs and leaves nothing except its output, as in a dropped segment.
    pub untaped: u64,
    /// While its backward runs, the gradient of its output included.
    pub backward: u64,
}

impl LayerMemory {
    /// Left on the tape by its forward, without its input and output.
    fn own(&self) -> u64 {
        self.activations.saturating_sub(self.input)
    }

    /// The most while its forward or its backward runs.
    #[must_use]
    pub fn working(&self) -> u64 {
        self.forward.max(self.untaped).max(self.backward)
    }

    /// The same with its output, which is the next one's input, or stays on the last one's tape.
    fn taped(&self) -> u64 {
        self.own().saturating_add(self.output)
    }
}

/// The bytes of a stage.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StageMemory {
    /// Held all the time: parameters and the optimizer's state.
    pub fixed: u64,
    /// Its layers.
    pub layers: Vec<LayerMemory>,
    /// Kept by its rank's threads for themselves; stages of one rank share it.
    pub workspace: u64,
    /// Held by an atomic update until all stages are updated.
    pub staged: u64,
    /// The most that the update of a layer needs besides all that.
    pub update: u64,
}

/// How a backward runs.
#[derive(Clone, Copy)]
pub(super) struct Backward {
    /// The last dropped segment is there again.
    pub(super) rebuilt: bool,
    /// It is the stage's first in the step: gradients stay.
    pub(super) is_first: bool,
}

/// Sums that stay at the largest number instead of overflowing.
pub(super) fn total(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

impl StageMemory {
    /// A stage that is taken as one layer, of which nothing else is known.
    #[must_use]
    pub fn whole(activations: u64, input: u64) -> Self {
        let layer = LayerMemory { activations, input, ..LayerMemory::default() };
        Self { layers: vec![layer], ..Self::default() }
    }

    /// Forwards that leave all on the tape. The input of the first is there already.
    pub(super) fn taped(&self, layers: Range<usize>, peak: &mut Peak, beside: u64) {
        for layer in &self.layers[layers] {
            peak.touch(layer.forward.saturating_add(beside));
            peak.take(layer.taped());
        }
    }

    /// Forwards that leave nothing on the tape. The input of the first is there already, and stays.
    pub(super) fn untaped(&self, layers: Range<usize>, peak: &mut Peak) {
        let first = layers.start;
        for (index, layer) in layers.clone().zip(&self.layers[layers]) {
            let passing = if index == first { 0 } else { layer.input };
            peak.touch(passing.saturating_add(layer.untaped));
        }
    }

    pub(super) fn forward(&self, retention: &StageRetention, peak: &mut Peak) {
        let count = self.layers.len();
        let mut next = 0;
        peak.take(self.input());
        for segment in retention.dropped() {
            self.taped(next..segment.start, peak, 0);
            self.untaped(segment.clone(), peak);
            next = segment.end;
            // The layer after it keeps its input.
            peak.take(self.layers.get(next).map_or(0, |layer| layer.input));
        }
        self.taped(next..count, peak, 0);
    }

    /// A whole backward.
    pub(super) fn backward(&self, retention: &StageRetention, run: Backward, peak: &mut Peak) {
        let dropped = retention.dropped();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let ends = dropped.iter().position(|segment| segment.end == index + 1);
            if let Some(segment) = ends.filter(|&s| !(run.rebuilt && s + 1 == dropped.len())) {
                self.taped(dropped[segment].clone(), peak, layer.output);
            }
            peak.touch(layer.backward);
            peak.release(layer.taped());
            if run.is_first {
                peak.take(layer.gradients);
            }
            if dropped.iter().any(|segment| segment.end == index) {
                peak.release(layer.input);
            }
        }
        peak.release(self.input());
    }

    /// Held once every dropped segment is there again.
    pub(super) fn rebuilt(&self, retention: &StageRetention) -> u64 {
        let taped = total(self.layers.iter().map(LayerMemory::taped));
        let kept = retention.dropped().iter().filter_map(|segment| self.layers.get(segment.end));
        total([self.input(), taped, total(kept.map(|layer| layer.input))])
    }

    pub(crate) fn input(&self) -> u64 {
        self.layers.first().map_or(0, |layer| layer.input)
    }

    pub(crate) fn output(&self) -> u64 {
        self.layers.last().map_or(0, |layer| layer.output)
    }

    pub(super) fn gradients(&self) -> u64 {
        total(self.layers.iter().map(|layer| layer.gradients))
    }
}

/// A quantity that goes up and down beside what waits, and the maximum of both together.
pub(super) struct Peak {
    now: u64,
    waiting: u64,
    highest: u64,
}

impl Peak {
    /// Begins with what is always there.
    pub(super) fn above(fixed: u64) -> Self {
        Self { now: fixed, waiting: 0, highest: fixed }
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// So much waits from now on.
    pub(super) fn wait(&mut self, amount: u64) {
        self.waiting = amount;
        self.touch(0);
    }

    pub(super) fn take(&mut self, amount: u64) {
        self.now = self.now.saturating_add(amount);
        self.touch(0);
    }

    /// Takes it and gives it back.
    pub(super) fn touch(&mut self, amount: u64) {
        let all = self.now.saturating_add(self.waiting).saturating_add(amount);
        self.highest = self.highest.max(all);
    }

    pub(super) fn release(&mut self, amount: u64) {
        self.now = self.now.saturating_sub(amount);
    }
}
