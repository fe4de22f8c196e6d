//! How much a rank holds between forwards and backwards: micro-batches, and bytes of activations.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Compute, ComputeKind, Mode, Plan, Program, Stage, StageRetention};

/// The bytes that each layer of a stage holds for one micro-batch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StageMemory {
    /// Each layer's activations: what its backward needs, its input included.
    pub activations: Vec<u64>,
    /// Each layer's input alone.
    pub inputs: Vec<u64>,
}

impl StageMemory {
    /// A stage that is taken as one layer.
    #[must_use]
    pub fn whole(activations: u64, input: u64) -> Self {
        Self { activations: vec![activations], inputs: vec![input] }
    }

    /// What stays from forward to backward: all activations but those of dropped segments, of which
    /// only the input stays.
    #[must_use]
    pub fn kept(&self, retention: &StageRetention) -> u64 {
        let all: u64 = self.activations.iter().sum();
        all.saturating_sub(self.dropped(retention))
    }

    /// What is rebuilt of a dropped segment, the kept input not counted again.
    fn segment(&self, segment: &Range<usize>) -> u64 {
        let layers: u64 = self.activations.get(segment.clone()).unwrap_or(&[]).iter().sum();
        layers.saturating_sub(self.inputs.get(segment.start).copied().unwrap_or(0))
    }

    fn dropped(&self, retention: &StageRetention) -> u64 {
        retention.dropped().iter().map(|segment| self.segment(segment)).sum()
    }
}

impl Plan {
    /// For each stage, the highest number of micro-batches whose forward has run and whose backward
    /// hasn't ended. A rank of several stages holds at most their sum.
    #[must_use]
    pub fn stage_activations(&self) -> Vec<usize> {
        let of = |stage: Stage| {
            let row = self.row(self.placement()[stage.index()].index());
            self.peak_in_flight(row.iter().filter(|action| action.stage == stage))
        };
        Stage::first(self.stages()).map(of).collect()
    }

    /// The most micro-batches between forward and backward in these actions of one rank.
    fn peak_in_flight<'a>(&self, actions: impl IntoIterator<Item = &'a Compute>) -> usize {
        let mut peak = Peak::default();
        if self.mode() == Mode::Training {
            for action in actions {
                match action.kind {
                    ComputeKind::Forward => peak.take(1),
                    ComputeKind::Backward | ComputeKind::BackwardWeight => peak.release(1),
                    ComputeKind::Recompute | ComputeKind::BackwardInput => {}
                }
            }
        }
        peak.highest as usize
    }
}

impl Program {
    /// The highest number of micro-batches, counted for each stage, whose forward has run on `rank` and
    /// whose backward hasn't ended. What each costs depends on the retention.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn peak_activations(&self, rank: usize) -> usize {
        self.plan().peak_in_flight(self.plan().row(rank))
    }

    /// The most bytes of activations that `rank` holds at once, what is rebuilt for backwards included.
    /// `stages` says for each stage what its layers hold. Parameters, gradients and optimizer state
    /// come on top.
    ///
    /// A whole backward rebuilds its dropped segments one at a time, the last one in `R`. A split one
    /// has to hold all of them until `W`.
    ///
    /// # Panics
    ///
    /// If there is no such rank, or `stages` covers fewer stages than the program has.
    #[must_use]
    pub fn peak_bytes(&self, rank: usize, stages: &[StageMemory]) -> u64 {
        let mut peak = Peak::default();
        if self.plan().mode() == Mode::ForwardOnly {
            return 0;
        }
        for action in self.row(rank).iter().filter_map(|a| a.compute()) {
            let memory = &stages[action.stage.index()];
            let retention = self.retention().of(action.stage, action.micro_batch);
            let kept = memory.kept(retention);
            let last = retention.dropped().last().map_or(0, |s| memory.segment(s));
            match action.kind {
                ComputeKind::Forward => peak.take(kept),
                ComputeKind::Recompute => peak.take(last),
                ComputeKind::Backward => {
                    peak.release(last);
                    let segments = retention.dropped().iter().map(|s| memory.segment(s));
                    let largest = segments.max().unwrap_or(0);
                    peak.take(largest);
                    peak.release(largest + kept);
                }
                ComputeKind::BackwardInput => peak.take(memory.dropped(retention) - last),
                ComputeKind::BackwardWeight => peak.release(kept + memory.dropped(retention)),
            }
        }
        peak.highest
    }
}

/// A quantity that goes up and down, and its maximum.
#[derive(Default)]
struct Peak {
    now: u64,
    highest: u64,
}

impl Peak {
    fn take(&mut self, amount: u64) {
        self.now = self.now.saturating_add(amount);
        self.highest = self.highest.max(self.now);
    }

    fn release(&mut self, amount: u64) {
        self.now = self.now.saturating_sub(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edges, GPipe, OneFOneB, Retention, Schedule, Shape, Stage, ZbH1};

    fn program(schedule: &dyn Schedule, retention: &StageRetention) -> Program {
        let plan = schedule.plan(Shape::new(2, 4)).expect("a plan");
        let retention = Retention::from_fn(&plan, |_, _| retention.clone());
        Program::lower(&plan, &Edges::chain(2), &retention).expect("lowers")
    }

    #[test]
    fn recomputation_keeps_inputs_and_one_segment() {
        let stages = vec![StageMemory { activations: vec![10, 20, 30], inputs: vec![1, 2, 3] }; 2];
        let bytes = |retention: &StageRetention| {
            program(&GPipe::default(), retention).peak_bytes(0, &stages)
        };
        assert_eq!(bytes(&StageRetention::keep_all()), 4 * 60);
        // Four inputs, and one micro-batch rebuilt beside its input.
        assert_eq!(bytes(&StageRetention::drop_all(3)), 4 + 59);
        // Two segments: both inputs stay, the larger one is rebuilt alone.
        let two = StageRetention::drop_segments(Stage::new(0), 3, vec![0..1, 1..3]);
        assert_eq!(bytes(&two.expect("legal")), 4 * (1 + 2) + 48);
    }

    #[test]
    fn a_split_backward_holds_what_it_rebuilt_until_the_weights_are_done() {
        let stages = vec![StageMemory::whole(10, 1); 2];
        let bytes = program(&ZbH1, &StageRetention::drop_all(1)).peak_bytes(1, &stages);
        // Rank 1 lets one weight gradient wait: two rebuilt at once, which saves nothing.
        assert_eq!(bytes, 20);
    }

    #[test]
    fn stages_of_a_rank_are_counted_apart() {
        let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
        assert_eq!(plan.stage_activations(), [3, 2, 1]);
        let rows = ["0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"].map(str::split_whitespace);
        assert_eq!(Plan::parse(rows).expect("valid").stage_activations(), [2, 2]);
    }

    #[test]
    fn evaluation_keeps_nothing() {
        let plan = crate::ForwardOnly.plan(Shape::new(2, 4)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan));
        let program = program.expect("lowers");
        assert_eq!(program.peak_bytes(0, &vec![StageMemory::whole(10, 1); 2]), 0);
        assert_eq!(program.peak_activations(0), 0);
    }
}
