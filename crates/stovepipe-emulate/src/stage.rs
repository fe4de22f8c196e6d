//! A stage that waits instead of computing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use spin_sleep::SpinSleeper;
use stovepipe_runtime::{Begin, StageCompute};
use stovepipe_schedule::{
    Compute, ComputeKind, CostModel, MicroBatch, Program, Stage, StageRetention,
};

/// A stage that takes as long for each action as the costs say, in seconds.
pub(crate) struct EmulatedStage {
    stage: Stage,
    program: Arc<Program>,
    costs: Arc<CostModel>,
    /// The bytes of each value that it hands on.
    bytes: usize,
    sleeper: SpinSleeper,
}

impl EmulatedStage {
    pub(crate) fn new(
        stage: Stage,
        program: Arc<Program>,
        costs: Arc<CostModel>,
        bytes: usize,
    ) -> Self {
        Self { stage, program, costs, bytes, sleeper: SpinSleeper::default() }
    }

    fn wait(&self, seconds: f64) {
        if seconds > 0.0 {
            self.sleeper.sleep(Duration::from_secs_f64(seconds));
        }
    }

    fn act(&self, kind: ComputeKind, micro_batch: MicroBatch) {
        self.wait(self.costs.time(Compute::new(kind, self.stage, micro_batch)));
    }

    fn values(&self, count: usize) -> Vec<Vec<u8>> {
        vec![vec![0; self.bytes]; count]
    }

    /// The values that go back to earlier stages.
    fn gradients(&self) -> Vec<Vec<u8>> {
        let edges = self.program.edges();
        let returning = edges.incoming(self.stage).filter(|edge| edges.carries_gradient(edge));
        self.values(returning.count())
    }
}

impl StageCompute for EmulatedStage {
    type Value = Vec<u8>;
    type Input = ();
    type Output = ();
    type Error = Infallible;

    const SPLITS_BACKWARD: bool = true;

    fn begin(&mut self, _: Begin<'_, ()>) -> Result<(), Infallible> {
        Ok(())
    }

    fn forward(
        &mut self,
        micro_batch: MicroBatch,
        inputs: Vec<Vec<u8>>,
        _: &StageRetention,
    ) -> Result<Vec<Vec<u8>>, Infallible> {
        drop(inputs);
        self.act(ComputeKind::Forward, micro_batch);
        Ok(self.values(self.program.edges().outgoing(self.stage).count()))
    }

    fn recompute(&mut self, micro_batch: MicroBatch, _: &StageRetention) -> Result<(), Infallible> {
        self.act(ComputeKind::Recompute, micro_batch);
        Ok(())
    }

    fn backward(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Vec<u8>>,
        _: &StageRetention,
    ) -> Result<Vec<Vec<u8>>, Infallible> {
        drop(gradients);
        self.act(ComputeKind::Backward, micro_batch);
        Ok(self.gradients())
    }

    fn backward_input(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Vec<u8>>,
        _: &StageRetention,
    ) -> Result<Vec<Vec<u8>>, Infallible> {
        drop(gradients);
        self.act(ComputeKind::BackwardInput, micro_batch);
        Ok(self.gradients())
    }

    fn backward_weight(&mut self, micro_batch: MicroBatch) -> Result<(), Infallible> {
        self.act(ComputeKind::BackwardWeight, micro_batch);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<u8>, Infallible> {
        Ok(Vec::new())
    }

    fn prepare(&mut self, _: &[Vec<u8>]) -> Result<(), Infallible> {
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Infallible> {
        self.wait(self.costs.stages()[self.stage.index()].update);
        Ok(())
    }

    fn abandon(&mut self) {}

    fn take_output(&mut self) {}
}
