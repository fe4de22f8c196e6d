//! How much a rank holds during a step: micro-batches, and bytes.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Compute, ComputeKind, MicroBatch, Mode, Plan, Program, Stage, StageRetention};

/// The bytes of a layer, for one micro-batch.
///
/// The last three are peaks, above what was there when the forward or backward began. Where they aren't
/// known and zero, only what stays is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayerMemory {
    /// What its backward needs, its input included and its output not.
    pub activations: u64,
    /// Its input alone.
    pub input: u64,
    /// Its output alone.
    pub output: u64,
    /// The gradients of its parameters, which stay from its first backward until the update.
    pub gradients: u64,
    /// While its forward runs, what it leaves behind included.
    pub forward: u64,
    /// While its forward runs that leaves nothing behind but its output, as in a dropped segment.
    pub untaped: u64,
    /// While its backward runs, the gradient of its output included.
    pub backward: u64,
}

impl LayerMemory {
    /// The most while its forward or its backward runs.
    #[must_use]
    pub fn working(&self) -> u64 {
        self.forward.max(self.untaped).max(self.backward)
    }

    /// What its forward leaves behind, its input and output apart.
    fn own(&self) -> u64 {
        self.activations.saturating_sub(self.input)
    }

    /// The same with its output, which is the next one's input, or stays on the last one's tape.
    fn taped(&self) -> u64 {
        self.own().saturating_add(self.output)
    }
}

/// The bytes of a stage.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StageMemory {
    /// What it holds all the time: parameters and the optimizer's state.
    pub fixed: u64,
    /// Its layers.
    pub layers: Vec<LayerMemory>,
    /// What its rank's threads keep for themselves; stages of one rank share it.
    pub workspace: u64,
    /// What a staged update holds until all stages are updated.
    pub staged: u64,
    /// The most that the update of a layer needs beside all that.
    pub update: u64,
}

/// How a backward runs.
#[derive(Clone, Copy)]
struct Backward {
    /// The last dropped segment is there again.
    rebuilt: bool,
    /// It is the stage's first in the step: gradients stay.
    is_first: bool,
}

/// Sums that stay at the largest number instead of overflowing.
fn total(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

impl StageMemory {
    /// A stage that is taken as one layer, of which nothing else is known.
    #[must_use]
    pub fn whole(activations: u64, input: u64) -> Self {
        let layer = LayerMemory { activations, input, ..LayerMemory::default() };
        Self { layers: vec![layer], ..Self::default() }
    }

    /// Forwards that leave all behind. The input of the first is there already.
    fn taped(&self, layers: Range<usize>, peak: &mut Peak, beside: u64) {
        for layer in &self.layers[layers] {
            peak.touch(layer.forward.saturating_add(beside));
            peak.take(layer.taped());
        }
    }

    /// Forwards that leave nothing behind. The input of the first is there already, and stays.
    fn untaped(&self, layers: Range<usize>, peak: &mut Peak) {
        let first = layers.start;
        for (index, layer) in layers.clone().zip(&self.layers[layers]) {
            let passing = if index == first { 0 } else { layer.input };
            peak.touch(passing.saturating_add(layer.untaped));
        }
    }

    fn forward(&self, retention: &StageRetention, peak: &mut Peak) {
        let count = self.layers.len();
        let mut next = 0;
        peak.take(self.input());
        for segment in retention.dropped() {
            self.taped(next..segment.start, peak, 0);
            self.untaped(segment.clone(), peak);
            next = segment.end;
            // What comes behind keeps its input.
            peak.take(self.layers.get(next).map_or(0, |layer| layer.input));
        }
        self.taped(next..count, peak, 0);
    }

    /// A whole backward.
    fn backward(&self, retention: &StageRetention, run: Backward, peak: &mut Peak) {
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

    /// What it holds once every dropped segment is there again.
    fn rebuilt(&self, retention: &StageRetention) -> u64 {
        let taped = total(self.layers.iter().map(LayerMemory::taped));
        let kept = retention.dropped().iter().filter_map(|segment| self.layers.get(segment.end));
        total([self.input(), taped, total(kept.map(|layer| layer.input))])
    }

    fn input(&self) -> u64 {
        self.layers.first().map_or(0, |layer| layer.input)
    }

    fn output(&self) -> u64 {
        self.layers.last().map_or(0, |layer| layer.output)
    }

    fn gradients(&self) -> u64 {
        total(self.layers.iter().map(|layer| layer.gradients))
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

    /// For each stage, the micro-batches whose forward has run and whose backward hasn't ended at the moment
    /// when its rank has most of them over all its stages; the first such moment. On a rank of one stage these are its
    /// [`stage_activations`](Self::stage_activations), on others at most that.
    #[must_use]
    pub fn activations_at_peak(&self) -> Vec<usize> {
        let mut at_peak = vec![0; self.stages()];
        for rank in 0..self.ranks() {
            let (mut now, mut most) = (vec![0usize; self.stages()], 0);
            for action in self.row(rank) {
                let held = &mut now[action.stage.index()];
                match action.kind {
                    ComputeKind::Forward if self.mode() == Mode::Training => *held += 1,
                    ComputeKind::Backward | ComputeKind::BackwardWeight => *held -= 1,
                    _ => {}
                }
                let total = now.iter().sum();
                if total > most {
                    most = total;
                    for stage in self.stages_of(rank) {
                        at_peak[stage.index()] = now[stage.index()];
                    }
                }
            }
        }
        at_peak
    }

    /// The larger of a stage's input and output, in bytes, that comes from a stage of another rank: as a
    /// value from the stage before, or as a gradient from the one behind.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn arriving(&self, stage: Stage, input: u64, output: u64) -> u64 {
        let placement = self.placement();
        let elsewhere = |other: Option<usize>| {
            let rank = other.and_then(|other| placement.get(other));
            rank.is_some_and(|rank| *rank != placement[stage.index()])
        };
        let before = elsewhere(stage.index().checked_sub(1)).then_some(input);
        let behind = elsewhere(Some(stage.index() + 1)).then_some(output);
        before.unwrap_or(0).max(behind.unwrap_or(0))
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

    /// The most bytes that `rank` holds at once; `stages` says what each stage's layers need, and what isn't
    /// said there isn't counted. The mini-batch itself is counted as the micro-batches that the first stage
    /// keeps.
    ///
    /// A whole backward rebuilds its dropped segments one at a time, the last one in `R`. A split one
    /// has to hold all of them until `W`. The value that the next action receives may have arrived.
    ///
    /// # Panics
    ///
    /// If there is no such rank, or `stages` covers fewer stages, or fewer layers of one, than the program has.
    #[must_use]
    pub fn peak_bytes(&self, rank: usize, stages: &[StageMemory]) -> u64 {
        let own = self.plan().stages_of(rank);
        let fixed = total(own.iter().map(|stage| stages[stage.index()].fixed));
        let workspace = own.iter().map(|stage| stages[stage.index()].workspace).max();
        let fixed = fixed.saturating_add(workspace.unwrap_or(0));
        let arriving = own.iter().map(|&stage| {
            let memory = &stages[stage.index()];
            self.plan().arriving(stage, memory.input(), memory.output())
        });
        let mut peak = Peak { now: fixed, highest: fixed };
        peak.take(arriving.max().unwrap_or(0));
        if self.plan().mode() == Mode::ForwardOnly {
            for stage in own {
                let memory = &stages[stage.index()];
                peak.take(memory.input());
                memory.untaped(0..memory.layers.len(), &mut peak);
                peak.release(memory.input());
            }
            return peak.highest;
        }
        // What `R` has rebuilt.
        let mut rebuilt: HashSet<(Stage, MicroBatch)> = HashSet::new();
        let mut has_gradients: HashSet<Stage> = HashSet::new();
        for action in self.row(rank).iter().filter_map(|a| a.compute()) {
            let Compute { stage, micro_batch, kind } = action;
            let memory = &stages[stage.index()];
            let retention = self.retention().of(stage, micro_batch);
            let key = (stage, micro_batch);
            match kind {
                ComputeKind::Forward => memory.forward(retention, &mut peak),
                ComputeKind::Recompute => {
                    let last = retention.dropped().last().cloned().unwrap_or_default();
                    memory.taped(last, &mut peak, 0);
                    rebuilt.insert(key);
                }
                ComputeKind::Backward => {
                    let is_first = has_gradients.insert(stage);
                    let run = Backward { rebuilt: rebuilt.remove(&key), is_first };
                    memory.backward(retention, run, &mut peak);
                }
                ComputeKind::BackwardInput => {
                    let missing = retention.dropped().iter().rev();
                    for segment in missing.skip(usize::from(rebuilt.remove(&key))) {
                        memory.taped(segment.clone(), &mut peak, memory.output());
                    }
                    let most = memory.layers.iter().map(|layer| layer.backward).max();
                    peak.touch(most.unwrap_or(0));
                }
                ComputeKind::BackwardWeight => {
                    peak.release(memory.rebuilt(retention));
                    if has_gradients.insert(stage) {
                        peak.take(memory.gradients());
                    }
                }
            }
        }
        let staged = total(own.iter().map(|stage| stages[stage.index()].staged));
        let update = own.iter().map(|stage| stages[stage.index()].update).max();
        peak.touch(staged.saturating_add(update.unwrap_or(0)));
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

    /// Takes it and gives it back.
    fn touch(&mut self, amount: u64) {
        self.highest = self.highest.max(self.now.saturating_add(amount));
    }

    fn release(&mut self, amount: u64) {
        self.now = self.now.saturating_sub(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edges, GPipe, Interleaved1F1B, OneFOneB, Retention, Schedule, Shape, Stage, ZbH1};

    fn program(schedule: &dyn Schedule, retention: &StageRetention) -> Program {
        let plan = schedule.plan(Shape::new(2, 4)).expect("a plan");
        let retention = Retention::from_fn(&plan, |_, _| retention.clone());
        Program::lower(&plan, &Edges::chain(2), &retention).expect("lowers")
    }

    #[test]
    fn recomputation_keeps_inputs_and_one_segment() {
        let layer = |own: u64, input: u64, output: u64| LayerMemory {
            activations: own + input,
            input,
            output,
            ..LayerMemory::default()
        };
        let layers = vec![layer(9, 1, 2), layer(18, 2, 3), layer(27, 3, 4)];
        let stages = vec![StageMemory { layers, ..StageMemory::default() }; 2];
        // A gradient of the output may have arrived.
        let arriving = 4;
        let bytes = |retention: &StageRetention| {
            program(&GPipe::default(), retention).peak_bytes(0, &stages)
        };
        let all = 9 + 18 + 27 + 2 + 3 + 4;
        assert_eq!(bytes(&StageRetention::keep_all()), 4 * (1 + all) + arriving);
        // Four inputs, and one micro-batch rebuilt beside its input.
        assert_eq!(bytes(&StageRetention::drop_all(3)), 4 + all + arriving);
        // Two segments: both inputs stay, the larger one is rebuilt alone.
        let two = StageRetention::drop_segments(Stage::new(0), 3, vec![0..1, 1..3]);
        assert_eq!(bytes(&two.expect("legal")), 4 * (1 + 2) + 18 + 27 + 3 + 4 + arriving);
    }

    #[test]
    fn stages_of_a_rank_hold_most_at_different_times() {
        let plan = Interleaved1F1B.plan(Shape::new(2, 4).with_stages_per_rank(2)).expect("a plan");
        assert_eq!(plan.stage_activations(), [4, 3, 2, 1]);
        let at_peak = plan.activations_at_peak();
        assert_eq!(at_peak[0] + at_peak[2], 5);
        assert_eq!(at_peak[1] + at_peak[3], 3);
        let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
        assert_eq!(plan.activations_at_peak(), plan.stage_activations());
    }

    #[test]
    fn a_split_backward_holds_what_it_rebuilt_until_the_weights_are_done() {
        let stages = vec![StageMemory::whole(10, 1); 2];
        let bytes = program(&ZbH1, &StageRetention::drop_all(1)).peak_bytes(1, &stages);
        // Rank 1 lets one weight gradient wait: two rebuilt at once, which saves nothing. An input may have
        // arrived.
        assert_eq!(bytes, 20 + 1);
    }

    #[test]
    fn what_is_needed_for_a_moment_counts_where_it_is_needed() {
        let plan = OneFOneB.plan(Shape::new(1, 2)).expect("a plan");
        let program = |retention: &StageRetention| {
            let retention = Retention::from_fn(&plan, |_, _| retention.clone());
            Program::lower(&plan, &Edges::chain(1), &retention).expect("lowers")
        };
        let quiet = LayerMemory { activations: 11, input: 1, output: 1, ..LayerMemory::default() };
        let peak = |noisy: LayerMemory, stage: StageMemory, retention: &StageRetention| {
            let stage = StageMemory { layers: vec![quiet, noisy, quiet], ..stage };
            program(retention).peak_bytes(0, &[stage])
        };
        let (keep, drop) = (StageRetention::keep_all(), StageRetention::drop_all(3));
        let plain = || StageMemory::default();
        assert_eq!(peak(quiet, plain(), &keep), 1 + 33);
        // In the forward of the second layer there are an input, and 11 of the first.
        assert_eq!(peak(LayerMemory { forward: 50, ..quiet }, plain(), &keep), 1 + 11 + 50);
        // In its backward, too, and its own 11.
        assert_eq!(peak(LayerMemory { backward: 50, ..quiet }, plain(), &keep), 1 + 22 + 50);
        // While it leaves nothing behind, the input of the stage and its own.
        assert_eq!(peak(LayerMemory { untaped: 50, ..quiet }, plain(), &drop), 1 + 1 + 50);
        // Gradients of the first micro-batch are there in the forward of the second.
        let noisy = LayerMemory { gradients: 7, forward: 50, ..quiet };
        assert_eq!(peak(noisy, plain(), &keep), 7 + 1 + 11 + 50);
        let stage = StageMemory { fixed: 100, update: 60, ..plain() };
        assert_eq!(peak(noisy, stage, &keep), 100 + 7 + 1 + 11 + 50);
        assert_eq!(
            peak(
                LayerMemory { gradients: 7, ..quiet },
                StageMemory { update: 60, staged: 5, ..plain() },
                &keep
            ),
            7 + 5 + 60
        );
    }

    #[test]
    fn stages_of_a_rank_are_counted_apart() {
        let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
        assert_eq!(plan.stage_activations(), [3, 2, 1]);
        let rows = ["0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"].map(str::split_whitespace);
        assert_eq!(Plan::parse(rows).expect("valid").stage_activations(), [2, 2]);
    }

    #[test]
    fn evaluation_holds_an_input_at_most() {
        let plan = crate::ForwardOnly.plan(Shape::new(2, 4)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan));
        let program = program.expect("lowers");
        assert_eq!(program.peak_bytes(0, &vec![StageMemory::whole(10, 1); 2]), 1);
        assert_eq!(program.peak_activations(0), 0);
    }
}
