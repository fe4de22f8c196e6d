//! The stages of one rank, and the one way to call them: what fails or panics in a stage comes back
//! as an error that names it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use stovepipe_schedule::{MicroBatch, Program, Rank, Stage};
use stovepipe_transport::TransportError;

use crate::compute::StageCompute;
use crate::error::{Cause, StepError, StepPhase};

/// The stages of one rank, in order.
#[derive(Debug)]
pub(crate) struct RankStages<C> {
    pub(crate) rank: Rank,
    stages: BTreeMap<Stage, C>,
}

impl<C: StageCompute> RankStages<C> {
    pub(crate) fn new(rank: Rank, stages: impl IntoIterator<Item = (Stage, C)>) -> Self {
        Self { rank, stages: stages.into_iter().collect() }
    }

    pub(crate) fn get_mut(&mut self, stage: Stage) -> Option<&mut C> {
        self.stages.get_mut(&stage)
    }

    /// Refuses a program that these stages can't run.
    pub(crate) fn check(&self, program: &Program) -> Result<(), StepError> {
        let rank = self.rank.index();
        let plan = program.plan();
        if rank >= plan.ranks() {
            return Err(StepError::NoRank { rank: self.rank, ranks: plan.ranks() });
        }
        let needed = plan.stages_of(rank);
        if !self.stages.keys().eq(needed) {
            let held = self.stages.keys().map(|s| s.index()).collect();
            let expected = needed.iter().map(|s| s.index()).collect();
            return Err(StepError::Stages { rank: self.rank, expected, held });
        }
        if plan.splits_backward() && !C::SPLITS_BACKWARD {
            return Err(StepError::SplitBackward);
        }
        Ok(())
    }

    /// Calls into every stage in order, up to the first that fails.
    pub(crate) fn call_each<R>(
        &mut self,
        phase: StepPhase,
        mut run: impl FnMut(Stage, &mut C) -> Result<R, C::Error>,
    ) -> Result<Vec<R>, StepError> {
        let stages: Vec<Stage> = self.stages.keys().copied().collect();
        stages
            .into_iter()
            .map(|stage| self.call(stage, None, phase, |compute| run(stage, compute)))
            .collect()
    }

    /// Calls into a stage; an error or a panic comes back with its whereabouts.
    pub(crate) fn call<R>(
        &mut self,
        stage: Stage,
        micro_batch: Option<MicroBatch>,
        phase: StepPhase,
        run: impl FnOnce(&mut C) -> Result<R, C::Error>,
    ) -> Result<R, StepError> {
        let Some(compute) = self.stages.get_mut(&stage) else {
            return Err(StepError::NoStage { stage });
        };
        let cause = match catch_unwind(AssertUnwindSafe(|| run(compute))) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => Cause::Error(Box::new(error)),
            Err(payload) => Cause::of_panic(payload.as_ref()),
        };
        Err(StepError::Stage { rank: self.rank, stage, micro_batch, phase, cause })
    }

    /// Lets every stage forget the step.
    pub(crate) fn abandon(&mut self) {
        for stage in self.stages.values_mut() {
            // A stage whose clean-up panics too has nothing left to say.
            let _ = catch_unwind(AssertUnwindSafe(|| stage.abandon()));
        }
    }

    /// Takes from each stage the output of a successful step.
    pub(crate) fn take_outputs(&mut self) -> Vec<(Stage, C::Output)> {
        self.stages.iter_mut().map(|(stage, compute)| (*stage, compute.take_output())).collect()
    }

    pub(crate) fn transport_error(&self, source: TransportError) -> StepError {
        StepError::Transport { rank: self.rank, source }
    }
}
