//! An emulated pipeline: its ranks and their steps.

use std::sync::Arc;

use stovepipe_runtime::{PlainThread, RankSetup, StepError, Workers};
use stovepipe_schedule::{CostError, CostModel, Program, Stage, Timeline, simulate};

use crate::stage::EmulatedStage;

/// A pipeline whose stages wait instead of computing, a thread for each rank.
///
/// Links take the time that handing over takes within a process: those of the costs aren't
/// emulated.
pub struct Emulation {
    program: Arc<Program>,
    workers: Workers<EmulatedStage>,
}

/// The reasons why a pipeline can't be emulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulationError {
    /// The costs don't fit the program, or can't be used.
    #[error(transparent)]
    Costs(#[from] CostError),
    /// A rank's thread can't be started, or a step failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Emulation {
    /// Starts the ranks of a program whose stages take as many seconds as the costs say and hand on
    /// values of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`EmulationError`] for costs that [`simulate`] refuses, and threads that can't be started.
    pub fn start(
        program: &Program,
        costs: &CostModel,
        bytes: usize,
    ) -> Result<Self, EmulationError> {
        simulate(program, costs)?;
        let (program, costs) = (Arc::new(program.clone()), Arc::new(costs.clone()));
        let stage = |stage: &Stage| {
            let (program, costs) = (Arc::clone(&program), Arc::clone(&costs));
            (*stage, EmulatedStage::new(*stage, program, costs, bytes))
        };
        let plan = program.plan();
        let ranks = (0..plan.ranks()).map(|rank| {
            let stages = plan.stages_of(rank).iter().map(stage).collect();
            RankSetup::new(stages, Box::new(PlainThread))
        });
        let workers = Workers::start(ranks.collect())?;
        Ok(Self { program, workers })
    }

    /// Runs a step. Returns when every action ran, in seconds.
    ///
    /// # Errors
    ///
    /// [`EmulationError::Step`], which isn't to be expected.
    pub fn step(&mut self) -> Result<Timeline, EmulationError> {
        Ok(self.workers.step(&self.program, Arc::new(()))?.timeline)
    }
}
