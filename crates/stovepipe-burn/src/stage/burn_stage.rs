//! One stage at work, as the executor calls it. The file `run` runs a micro-batch through it,
//! the file `update` ends its step.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, TensorData};
use stovepipe_runtime::{Agreement, Begin, StageCompute};
use stovepipe_schedule::{MicroBatch, Stage, StageRetention};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::error::stage::StageError;
use crate::loss::erasure::ErasedLoss;
use crate::model::layer_spec::LayerFacts;
use crate::stage::batch::Batch;
use crate::stage::report::Report;
use crate::stage::routes::Routes;
use crate::stage::settings::StageSettings;
use crate::stage::step::StageStep;
use crate::stage::tied_gradients::TiedUses;
use crate::value::packet::Packet;

/// The results of a step that leave the stage.
#[derive(Default)]
pub(crate) struct StageOutput {
    /// The outputs of the model by micro-batch, on the last stage.
    pub(crate) predictions: Vec<Packet>,
    /// The gradients by path, if the step was for them.
    pub(crate) gradients: BTreeMap<String, TensorData>,
}

/// Consecutive layers that run together on one rank.
pub(crate) struct BurnStage {
    pub(crate) layers: Vec<Box<dyn ErasedLayer>>,
    /// The number of layers at its front that don't train, with none before them that does.
    pub(crate) frozen: usize,
    /// Says whether a layer of an earlier stage trains.
    pub(crate) trains_before: bool,
    pub(crate) device: Device,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    /// The loss, on the last stage of a pipeline that has one.
    pub(crate) loss: Option<Arc<ErasedLoss>>,
    pub(crate) settings: StageSettings,
    pub(crate) routes: Routes,
    pub(crate) tied: TiedUses,
    /// The facts that decide which layers are recorded on one tape, by layer.
    pub(crate) joints: Vec<Joint>,
    pub(crate) carried: Carried,
    /// The step that runs.
    pub(crate) current: Option<StageStep>,
}

/// The facts about a layer that decide whether the next one is recorded on the same tape.
pub(crate) struct Joint {
    /// The number of its parameters.
    pub(crate) parameters: usize,
    /// Says whether its output depends on its input, once a backward has shown it.
    pub(crate) depends_on_input: Option<bool>,
}

impl Joint {
    /// Begins with what is known before the layer runs.
    pub(crate) fn of(facts: &LayerFacts) -> Self {
        Self { parameters: facts.parameters, depends_on_input: None }
    }
}

/// The totals of the mini-batches that were accumulated since the last update.
pub(crate) struct Carried {
    /// The sum of the weights of their losses.
    pub(crate) weight: f64,
    /// The scale of their gradients.
    pub(crate) scale: f64,
}

impl Default for Carried {
    fn default() -> Self {
        Self { weight: 0.0, scale: 1.0 }
    }
}

impl BurnStage {
    /// Copies the parameters to the host, by path; tied ones by the path of their first use.
    pub(crate) fn parameters(&self) -> BTreeMap<String, TensorData> {
        let copies = self.settings.tied_copies();
        let parameters = self.layers.iter().flat_map(|layer| layer.parameters());
        parameters.filter(|(path, _)| !copies.contains(path)).collect()
    }

    /// Returns the step that runs.
    pub(super) fn current(&mut self) -> Result<&mut StageStep, StageError> {
        let layers = &self.layers;
        self.current.as_mut().ok_or_else(|| StageError::no_step(first_name(layers)))
    }

    /// Makes the error that what `layer` kept for a micro-batch is missing.
    pub(super) fn gone(&self, layer: usize) -> StageError {
        StageError::gone(self.layers[layer].name())
    }

    /// Hands the queued work to the device.
    pub(super) fn flush(&self) -> Result<(), StageError> {
        Ok(self.settings.backend.flush(&self.device)?)
    }

    /// Waits until the device has done what this rank queued.
    pub(crate) fn synchronize(&self) -> Result<(), StageError> {
        Ok(self.settings.backend.synchronize(&self.device)?)
    }

    /// Moves a value or a gradient to this stage's device.
    pub(super) fn receive(&self, packet: Packet) -> Result<Packet, StageError> {
        Ok(self.settings.backend.receive(packet, &self.device)?)
    }

    pub(super) fn receive_all(&self, packets: Vec<Packet>) -> Result<Vec<Packet>, StageError> {
        packets.into_iter().map(|packet| self.receive(packet)).collect()
    }
}

fn first_name(layers: &[Box<dyn ErasedLayer>]) -> &str {
    layers.first().map(|layer| layer.name()).unwrap_or_default()
}

impl StageCompute for BurnStage {
    type Value = Packet;
    type Input = Batch;
    type Output = StageOutput;
    type Error = StageError;

    fn agreement(batch: &Batch) -> Agreement {
        batch.agreement.clone()
    }

    fn begin(&mut self, begin: Begin<'_, Batch>) -> Result<(), StageError> {
        self.current = Some(StageStep::new(Arc::clone(begin.input)));
        Ok(())
    }

    fn forward(
        &mut self,
        micro_batch: MicroBatch,
        inputs: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let outputs = self.run_forward(micro_batch.index(), inputs, retention)?;
        self.flush()?;
        Ok(outputs)
    }

    fn recompute(
        &mut self,
        micro_batch: MicroBatch,
        retention: &StageRetention,
    ) -> Result<(), StageError> {
        if let Some(segment) = self.dropped(retention).pop() {
            self.rebuild(micro_batch.index(), segment)?;
        }
        self.flush()
    }

    fn backward(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let gradients = self.run_backward(micro_batch.index(), gradients, retention)?;
        self.flush()?;
        Ok(gradients)
    }

    fn share(&mut self) -> Result<Vec<(Stage, Packet)>, StageError> {
        self.complete_gradients()
    }

    fn take_shared(&mut self, values: Vec<(Stage, Packet)>) -> Result<(), StageError> {
        self.add_tied(values)
    }

    fn finish(&mut self) -> Result<Vec<u8>, StageError> {
        Ok(self.report()?.encode())
    }

    fn prepare(&mut self, reports: &[Vec<u8>]) -> Result<(), StageError> {
        self.prepare_update(&Report::decode_all(reports)?)?;
        // A device that fails here has changed nothing yet.
        self.flush()
    }

    fn commit(&mut self) -> Result<(), StageError> {
        self.commit_update()
    }

    fn abandon(&mut self) {
        self.current = None;
        for layer in &mut self.layers {
            layer.abandon();
        }
    }

    fn take_output(&mut self) -> StageOutput {
        match self.current.take() {
            Some(step) => StageOutput {
                predictions: step.predictions.into_values().collect(),
                gradients: step.gradients,
            },
            None => StageOutput::default(),
        }
    }
}
