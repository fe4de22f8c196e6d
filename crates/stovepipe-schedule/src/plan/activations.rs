//! How many micro-batches stages and ranks hold between forward and backward.

use crate::plan::Plan;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::ids::Stage;
use crate::words::mode::Mode;

impl Plan {
    /// For each stage, the highest number of micro-batches whose forward has run and whose backward
    /// hasn't ended. A rank of several stages holds at most their sum.
    #[must_use]
    pub fn stage_activations(&self) -> Vec<usize> {
        let peak = |stage: Stage| {
            let row = self.row(self.placement()[stage.index()].index());
            self.peak_in_flight(row.iter().filter(|action| action.stage == stage))
        };
        Stage::first(self.stages()).map(peak).collect()
    }

    /// For each stage, the micro-batches whose forward has run and whose backward hasn't ended,
    /// when its rank first has most of them over all its stages. On a rank of one stage these are
    /// its [`stage_activations`](Self::stage_activations), on others at most that.
    #[must_use]
    pub fn activations_at_peak(&self) -> Vec<usize> {
        let mut at_peak = vec![0; self.stages()];
        for rank in 0..self.ranks() {
            let (mut now, mut total, mut most) = (vec![0usize; self.stages()], 0usize, 0);
            for action in self.row(rank) {
                let held = &mut now[action.stage.index()];
                match action.kind {
                    ComputeKind::Forward if self.mode() == Mode::Training => {
                        (*held, total) = (*held + 1, total + 1);
                    }
                    ComputeKind::Backward | ComputeKind::BackwardWeight => {
                        (*held, total) = (*held - 1, total - 1);
                    }
                    _ => {}
                }
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

    /// The larger of a stage's input and output, in bytes, that comes from a stage of another rank:
    /// as a value from the stage before, or as a gradient from the one after.
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
        let after = elsewhere(Some(stage.index() + 1)).then_some(output);
        before.unwrap_or(0).max(after.unwrap_or(0))
    }

    /// The most micro-batches between forward and backward in these actions of one rank.
    pub(crate) fn peak_in_flight<'a>(
        &self,
        actions: impl IntoIterator<Item = &'a Compute>,
    ) -> usize {
        if self.mode() == Mode::ForwardOnly {
            return 0;
        }
        let (mut now, mut most) = (0, 0);
        for action in actions {
            match action.kind {
                ComputeKind::Forward => now += 1,
                ComputeKind::Backward | ComputeKind::BackwardWeight => now -= 1,
                ComputeKind::Recompute | ComputeKind::BackwardInput => {}
            }
            most = now.max(most);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interleaved1F1B, OneFOneB, Schedule, Shape};

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
    fn stages_of_a_rank_are_counted_apart() {
        let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
        assert_eq!(plan.stage_activations(), [3, 2, 1]);
        let rows = ["0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"].map(str::split_whitespace);
        assert_eq!(Plan::parse(rows).expect("valid").stage_activations(), [2, 2]);
    }
}
