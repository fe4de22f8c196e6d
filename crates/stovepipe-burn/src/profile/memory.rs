//! What layers hold and need, counted where somebody counts.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use stovepipe_schedule::LayerMemory;

use super::{Ran, Subject, bytes};
use crate::cell::Forward;
use crate::gradients::Averaging;
use crate::part::copied;
use crate::profiling::Count;
use crate::{MemoryCounter, Pass, StageError};

impl Subject {
    /// What the threads that it runs on keep for themselves.
    pub(super) fn workspace(
        &mut self,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<u64, StageError> {
        let count = Count::begin(&self.backend, &self.device, counter)?;
        for index in 0..self.inputs.len() {
            self.run(index)?;
        }
        self.cells.iter_mut().for_each(|cell| cell.abandon());
        let copies = self.cells.iter().map(|cell| cell.copy_bytes()).sum();
        Ok(count.more()?.saturating_sub(copies))
    }

    /// What each layer holds and needs at one size.
    pub(super) fn memory(
        &mut self,
        index: usize,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<Vec<LayerMemory>, StageError> {
        let (backend, device) = (Arc::clone(&self.backend), self.device.clone());
        let mut outputs = self.forwards(index, Pass::Train)?.outputs.into_iter();
        let mut skipped = self.skipped[index].clone();
        let mut inputs = copied(&self.inputs[index]);
        let mut found = Vec::with_capacity(self.cells.len());
        for layer in 0..self.cells.len() {
            let input_bytes = bytes(&inputs);
            let taken = copied(&inputs);
            let mut popped = skipped.clone();
            let count = Count::begin(&backend, &device, counter)?;
            self.run_layer(layer, index, taken, (Pass::Train, Forward::Untaped), &mut popped)?;
            let untaped_bytes = count.most()?;

            let taken = copied(&inputs);
            let count = Count::begin(&backend, &device, counter)?;
            let Ran { outputs: returned, tape, loss } =
                self.forward(layer, index, taken, Pass::Train, &mut skipped)?;
            let (grown, forward_bytes) = (count.more()?, count.most()?);
            // The output is the next layer's input, and not this one's to count.
            let own = grown.saturating_sub(bytes(&returned));
            drop(returned);

            inputs = outputs.next().unwrap_or_default();
            let count = Count::begin(&backend, &device, counter)?;
            let gradients = match loss {
                Some(loss) => loss.backward(1.0),
                // Of their own, as if they had arrived.
                None => inputs.iter().map(|part| Some(part.duplicate())).collect(),
            };
            let stashed = tape.stashed_values();
            self.cells[layer].backward(tape, gradients, stashed, 1.0)?;
            let backward_bytes = count.most()?;
            found.push(LayerMemory {
                activations: own.saturating_add(input_bytes),
                forward: forward_bytes.unwrap_or(grown),
                untaped: untaped_bytes.unwrap_or(grown),
                backward: backward_bytes.unwrap_or(grown),
                ..LayerMemory::default()
            });
        }
        Ok(found)
    }

    /// For each layer, the most that its update needs beside its parameters, gradients and states, and what
    /// it adds to them until all layers are updated. Moves the parameters.
    pub(super) fn update_memory(
        &mut self,
        rate: &ModuleLearningRate,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<Vec<(u64, u64)>, StageError> {
        self.run(self.inputs.len() - 1)?;
        let mut found = Vec::with_capacity(self.cells.len());
        for cell in &mut self.cells {
            let count = Count::begin(&self.backend, &self.device, counter)?;
            cell.complete(None);
            let mut staged = 0;
            if self.atomic_updates {
                cell.prepare_update(rate, Averaging::mean(1.0))?;
                staged = count.more()?;
            }
            cell.commit(rate, Averaging::mean(1.0))?;
            let most = count.most()?.unwrap_or(staged);
            cell.abandon();
            found.push((most.saturating_sub(staged), staged));
        }
        Ok(found)
    }
}
