//! The bytes that layers hold and need, where there is a counter.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use stovepipe_schedule::LayerMemory;

use crate::autodiff::backward::run_backward;
use crate::autodiff::tape::Forward;
use crate::error::stage::StageError;
use crate::layer::context::Pass;
use crate::parameters::averaging::Averaging;
use crate::profile::counter::{Count, MemoryCounter};
use crate::profile::subject::{LayerForward, Subject, bytes};
use crate::value::part::copied;

impl Subject {
    /// Returns the bytes that the thread on which the layers run keeps for itself.
    pub(super) fn workspace(
        &mut self,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<u64, StageError> {
        let count = Count::begin(&self.backend, &self.device, counter)?;
        for index in 0..self.inputs.len() {
            self.run(index)?;
        }
        self.layers.iter_mut().for_each(|layer| layer.abandon());
        let copies = self.layers.iter().map(|layer| layer.copy_bytes()).sum();
        Ok(count.more()?.saturating_sub(copies))
    }

    /// Counts the bytes that each layer holds and needs at one size.
    pub(super) fn memory(
        &mut self,
        index: usize,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<Vec<LayerMemory>, StageError> {
        let (backend, device) = (Arc::clone(&self.backend), self.device.clone());
        let mut outputs = self.forwards(index, Pass::Train)?.outputs.into_iter();
        let mut skip_values = self.skip_values[index].clone();
        let mut inputs = copied(&self.inputs[index]);
        let mut found = Vec::with_capacity(self.layers.len());
        for layer in 0..self.layers.len() {
            let input_bytes = bytes(&inputs);
            let taken = copied(&inputs);
            let mut popped = skip_values.clone();
            let count = Count::begin(&backend, &device, counter)?;
            self.run_layer(layer, index, taken, (Pass::Train, Forward::Untaped), &mut popped)?;
            let untaped_bytes = count.most()?;

            let taken = copied(&inputs);
            let count = Count::begin(&backend, &device, counter)?;
            let LayerForward { outputs: returned, tape, loss } =
                self.forward(layer, index, taken, Pass::Train, &mut skip_values)?;
            let (grown, forward_bytes) = (count.more()?, count.most()?);
            // The output counts as the input of the next layer, and not here.
            let activation_bytes = grown.saturating_sub(bytes(&returned));
            drop(returned);

            inputs = outputs.next().unwrap_or_default();
            let count = Count::begin(&backend, &device, counter)?;
            let gradients = match loss {
                Some(loss) => loss.backward(1.0),
                // They are copies, as if they had arrived.
                None => inputs.iter().map(|part| Some(part.duplicate())).collect(),
            };
            let stashed = tape.stashed_values();
            run_backward(&mut self.layers[layer..=layer], tape, gradients, stashed, 1.0)?;
            let backward_bytes = count.most()?;
            found.push(LayerMemory {
                activations: activation_bytes.saturating_add(input_bytes),
                forward: forward_bytes.unwrap_or(grown),
                untaped: untaped_bytes.unwrap_or(grown),
                backward: backward_bytes.unwrap_or(grown),
                ..LayerMemory::default()
            });
        }
        Ok(found)
    }

    /// Counts the bytes of each layer's update. Moves the parameters.
    ///
    /// For each layer, returns two numbers:
    ///
    /// - the most that its update needs besides its parameters, gradients and states;
    /// - the bytes that it adds to them until all layers are updated.
    pub(super) fn update_memory(
        &mut self,
        rate: &ModuleLearningRate,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<Vec<(u64, u64)>, StageError> {
        self.run(self.inputs.len() - 1)?;
        let mut found = Vec::with_capacity(self.layers.len());
        for layer in &mut self.layers {
            let count = Count::begin(&self.backend, &self.device, counter)?;
            layer.complete(None);
            let mut prepared = 0;
            if self.atomic_updates {
                layer.prepare_update(rate, Averaging::mean(1.0))?;
                prepared = count.more()?;
            }
            layer.commit(rate, Averaging::mean(1.0))?;
            let most = count.most()?.unwrap_or(prepared);
            layer.abandon();
            found.push((most.saturating_sub(prepared), prepared));
        }
        Ok(found)
    }
}
