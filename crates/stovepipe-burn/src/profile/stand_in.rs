//! The stages of a rehearsal: those of one rank at work, and stand-ins for all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::TensorData;
use stovepipe_runtime::{Begin, StageCompute};
use stovepipe_schedule::{MicroBatch, Stage, StageRetention};

use crate::error::stage::StageError;
use crate::profile::traffic::Traffic;
use crate::stage::batch::Batch;
use crate::stage::burn_stage::{BurnStage, StageOutput};
use crate::stage::report::Report;
use crate::stage::routes::Routes;
use crate::stage::tied_gradients::TiedUses;
use crate::value::packet::Packet;
use crate::value::part::{HostPart, PartKind};
use crate::value::wire::into_part;

/// A stage that sends what was recorded, and throws away what it receives.
pub(super) struct StandIn {
    pub(super) stage: usize,
    pub(super) is_last: bool,
    pub(super) routes: Routes,
    pub(super) traffic: Arc<Traffic>,
    pub(super) tied: TiedUses,
    /// The shapes of tied parameters, by path.
    pub(super) shapes: Arc<BTreeMap<String, Vec<usize>>>,
}

impl StandIn {
    /// Returns the recorded values that go along the outgoing edges.
    fn forward(&self, micro_batch: usize) -> Vec<Packet> {
        let place = (!self.is_last).then_some(self.stage + 1);
        self.traffic.packets(micro_batch, place, &self.routes.outgoing, 0)
    }

    /// Returns values in the place of the gradients that go back along the incoming edges.
    fn backward(&self, micro_batch: usize) -> Vec<Packet> {
        let place = (self.stage > 0).then_some(self.stage);
        let chain_edge = self.routes.returning.len().saturating_sub(1);
        let packets = self.traffic.packets(micro_batch, place, &self.routes.returning, chain_edge);
        packets.iter().map(Packet::as_gradients).collect()
    }

    /// Returns zeros in the place of the gradients of tied parameters.
    fn share(&self) -> Vec<(Stage, Packet)> {
        self.tied.share(|_, path| {
            let zeros = TensorData::zeros::<f32, _>(self.shapes.get(path)?.clone());
            into_part(HostPart { kind: PartKind::Float, data: zeros }).ok()
        })
    }

    /// Returns a report with a weight to divide by, on the last stage.
    fn report(&self) -> Report {
        let losses = if self.is_last { vec![(0.0, 1.0)] } else { Vec::new() };
        Report { losses, ..Report::default() }
    }
}

/// A stage of a rehearsal: one that is real, or a stand-in.
pub(super) enum RehearsedStage {
    /// A stage of the rehearsed rank, at work.
    Real(Box<BurnStage>),
    /// A stage of another rank.
    StandIn(StandIn),
}

impl StageCompute for RehearsedStage {
    type Value = Packet;
    type Input = Batch;
    type Output = StageOutput;
    type Error = StageError;

    fn begin(&mut self, begin: Begin<'_, Batch>) -> Result<(), StageError> {
        match self {
            Self::Real(stage) => stage.begin(begin),
            Self::StandIn(_) => Ok(()),
        }
    }

    fn forward(
        &mut self,
        micro_batch: MicroBatch,
        inputs: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        match self {
            Self::Real(stage) => stage.forward(micro_batch, inputs, retention),
            Self::StandIn(stage) => Ok(stage.forward(micro_batch.index())),
        }
    }

    fn recompute(
        &mut self,
        micro_batch: MicroBatch,
        retention: &StageRetention,
    ) -> Result<(), StageError> {
        match self {
            Self::Real(stage) => stage.recompute(micro_batch, retention),
            Self::StandIn(_) => Ok(()),
        }
    }

    fn backward(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        match self {
            Self::Real(stage) => stage.backward(micro_batch, gradients, retention),
            Self::StandIn(stage) => Ok(stage.backward(micro_batch.index())),
        }
    }

    fn share(&mut self) -> Result<Vec<(Stage, Packet)>, StageError> {
        match self {
            Self::Real(stage) => stage.share(),
            Self::StandIn(stage) => Ok(stage.share()),
        }
    }

    fn take_shared(&mut self, values: Vec<(Stage, Packet)>) -> Result<(), StageError> {
        match self {
            Self::Real(stage) => stage.take_shared(values),
            Self::StandIn(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<Vec<u8>, StageError> {
        match self {
            Self::Real(stage) => stage.finish(),
            Self::StandIn(stage) => Ok(stage.report().encode()),
        }
    }

    fn prepare(&mut self, reports: &[Vec<u8>]) -> Result<(), StageError> {
        match self {
            Self::Real(stage) => stage.prepare(reports),
            Self::StandIn(_) => Ok(()),
        }
    }

    fn commit(&mut self) -> Result<(), StageError> {
        match self {
            Self::Real(stage) => stage.commit(),
            Self::StandIn(_) => Ok(()),
        }
    }

    fn abandon(&mut self) {
        if let Self::Real(stage) = self {
            stage.abandon();
        }
    }

    fn take_output(&mut self) -> StageOutput {
        match self {
            Self::Real(stage) => stage.take_output(),
            Self::StandIn(_) => StageOutput::default(),
        }
    }
}
