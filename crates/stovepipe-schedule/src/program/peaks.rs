//! How much a rank holds at most during a step: micro-batches, and bytes.

use std::collections::HashSet;

use crate::program::Program;
use crate::program::memory::{Backward, Peak, StageMemory, total};
use crate::words::compute::{Compute, ComputeKind};
use crate::words::ids::{MicroBatch, Stage};
use crate::words::mode::Mode;

impl Program {
    /// The highest number of micro-batches, counted for each stage, whose forward has run on `rank`
    /// and whose backward hasn't ended. What each costs depends on the retention.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn peak_activations(&self, rank: usize) -> usize {
        self.plan().peak_in_flight(self.plan().row(rank))
    }

    /// The most bytes that `rank` holds at once. `stages` says what each stage's layers need; what
    /// isn't said there isn't counted. The mini-batch itself is counted as the micro-batches that
    /// the first stage keeps.
    ///
    /// A whole backward rebuilds its dropped segments one at a time, the last one in `R`. A split
    /// one has to hold all of them until `W`. The value that the next action receives may have
    /// arrived.
    ///
    /// # Panics
    ///
    /// If there is no such rank, or `stages` covers fewer stages, or fewer layers of one, than the
    /// program has.
    #[must_use]
    pub fn peak_bytes(&self, rank: usize, stages: &[StageMemory]) -> u64 {
        self.peak_bytes_beside(rank, stages, &[])
    }

    /// The same with the bytes of values that wait during each action of the rank's row.
    pub(crate) fn peak_bytes_beside(
        &self,
        rank: usize,
        stages: &[StageMemory],
        waiting: &[u64],
    ) -> u64 {
        let own = self.plan().stages_of(rank);
        let fixed = total(own.iter().map(|stage| stages[stage.index()].fixed));
        let workspace = own.iter().map(|stage| stages[stage.index()].workspace).max();
        let fixed = fixed.saturating_add(workspace.unwrap_or(0));
        let arriving = own.iter().map(|&stage| {
            let memory = &stages[stage.index()];
            self.plan().arriving(stage, memory.input(), memory.output())
        });
        let arriving = arriving.max().unwrap_or(0);
        let mut peak = Peak::above(fixed);
        peak.wait(arriving);
        let most = waiting.iter().copied().fold(arriving, u64::max);
        match self.plan().mode() {
            Mode::ForwardOnly => {
                peak.wait(most);
                for stage in own {
                    let memory = &stages[stage.index()];
                    peak.take(memory.input());
                    memory.untaped(0..memory.layers.len(), &mut peak);
                    peak.release(memory.input());
                }
            }
            Mode::Training => {
                let waiting =
                    |position: usize| waiting.get(position).copied().unwrap_or(0).max(arriving);
                self.train(rank, stages, waiting, &mut peak);
                peak.wait(arriving);
                let staged = total(own.iter().map(|stage| stages[stage.index()].staged));
                let update = own.iter().map(|stage| stages[stage.index()].update).max();
                peak.touch(staged.saturating_add(update.unwrap_or(0)));
            }
        }
        peak.highest()
    }

    /// The actions of a training step on one rank, with what waits during each.
    fn train(
        &self,
        rank: usize,
        stages: &[StageMemory],
        waiting: impl Fn(usize) -> u64,
        peak: &mut Peak,
    ) {
        // Rebuilt by `R`.
        let mut rebuilt: HashSet<(Stage, MicroBatch)> = HashSet::new();
        let mut has_gradients: HashSet<Stage> = HashSet::new();
        for (position, action) in self.row(rank).iter().enumerate() {
            peak.wait(waiting(position));
            let Some(Compute { stage, micro_batch, kind }) = action.compute() else { continue };
            let memory = &stages[stage.index()];
            let retention = self.retention().of(stage, micro_batch);
            let key = (stage, micro_batch);
            match kind {
                ComputeKind::Forward => memory.forward(retention, peak),
                ComputeKind::Recompute => {
                    let last = retention.dropped().last().cloned().unwrap_or_default();
                    memory.taped(last, peak, 0);
                    rebuilt.insert(key);
                }
                ComputeKind::Backward => {
                    let is_first = has_gradients.insert(stage);
                    let run = Backward { rebuilt: rebuilt.remove(&key), is_first };
                    memory.backward(retention, run, peak);
                }
                ComputeKind::BackwardInput => {
                    let missing = retention.dropped().iter().rev();
                    for segment in missing.skip(usize::from(rebuilt.remove(&key))) {
                        memory.taped(segment.clone(), peak, memory.output());
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Edges, ForwardOnly, GPipe, LayerMemory, OneFOneB, Retention, Schedule, Shape,
        StageRetention, ZbH1,
    };

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
        // Four inputs, and one micro-batch rebuilt besides its input.
        assert_eq!(bytes(&StageRetention::drop_all(3)), 4 + all + arriving);
        // Two segments: both inputs stay, the larger one is rebuilt alone.
        let two = StageRetention::drop_segments(Stage::new(0), 3, vec![0..1, 1..3]);
        assert_eq!(bytes(&two.expect("legal")), 4 * (1 + 2) + 18 + 27 + 3 + 4 + arriving);
    }

    #[test]
    fn a_split_backward_holds_what_it_rebuilt_until_the_weights_are_done() {
        let stages = vec![StageMemory::whole(10, 1); 2];
        let bytes = program(&ZbH1, &StageRetention::drop_all(1)).peak_bytes(1, &stages);
        // Rank 1 lets one weight gradient wait: two rebuilt at once, which saves nothing. An input
        // may have arrived.
        assert_eq!(bytes, 20 + 1);
    }

    #[test]
    fn what_is_needed_briefly_counts_where_it_is_needed() {
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
        // While it leaves nothing on the tape, the input of the stage and its own.
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
    fn evaluation_holds_an_input_at_most() {
        let plan = ForwardOnly.plan(Shape::new(2, 4)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan));
        let program = program.expect("lowers");
        assert_eq!(program.peak_bytes(0, &vec![StageMemory::whole(10, 1); 2]), 1);
        assert_eq!(program.peak_activations(0), 0);
    }
}
