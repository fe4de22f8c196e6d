//! The end of a step in a stage: its report, the preparation of its update with the reports of
//! all, the commit.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use burn::tensor::Tensor;
use stovepipe_schedule::Stage;

use crate::autodiff::tape::free_abandoned;
use crate::backend::error::BackendError;
use crate::error::stage::StageError;
use crate::layer::statistics::{Observation, commit_observations};
use crate::loss::Weight;
use crate::parameters::averaging::{Averaging, Clipping};
use crate::stage::batch::Task;
use crate::stage::burn_stage::{BurnStage, Carried};
use crate::stage::report::{Report, norm_of, sum_and_weight_of};
use crate::value::packet::Packet;
use crate::value::reading::{Places, Reading};

impl BurnStage {
    /// Completes the gradients of the layers. Returns those of tied parameters that other stages
    /// need.
    pub(super) fn complete_gradients(&mut self) -> Result<Vec<(Stage, Packet)>, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let keeps_gradients = matches!(batch.task, Task::Train(_) | Task::Accumulate);
        // Gradients that were carried over may have been made at another scale.
        let carried = keeps_gradients.then_some(batch.scale / self.carried.scale);
        for layer in &mut self.layers {
            layer.complete(carried);
        }
        // What was recorded from parameters that got no gradient is freed by some later backward.
        if self.layers.iter().any(|layer| !layer.without_gradient().is_empty()) {
            free_abandoned(&self.device);
        }
        if !batch.task.uses_gradients() {
            return Ok(Vec::new());
        }
        let given = self.tied.share(|layer, path| self.layers[layer].gradient(path));
        if !given.is_empty() {
            self.flush()?;
        }
        Ok(given)
    }

    /// Adds the gradients of tied parameters.
    pub(super) fn add_tied(&mut self, given: Vec<(Stage, Packet)>) -> Result<(), StageError> {
        let receive = |(stage, packet)| Ok((stage, self.receive(packet)?));
        let given = given.into_iter().map(receive).collect::<Result<_, StageError>>()?;
        if self.current()?.batch.task.uses_gradients() {
            self.tied.take_shared(&mut self.layers, given);
        }
        Ok(())
    }

    /// Reports what all stages must know of the step.
    pub(super) fn report(&mut self) -> Result<Report, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let task = &batch.task;
        let keeps_gradients = matches!(task, Task::Train(_) | Task::Accumulate);
        let clips_by_norm = matches!(self.settings.clipping, Some(Clipping::Norm(_)));
        let checks_gradients = self.settings.forgets_overflows && matches!(task, Task::Gradients);
        let squares: Vec<Vec<Tensor<1>>> = if checks_gradients
            || keeps_gradients && (clips_by_norm || self.settings.forgets_overflows)
        {
            // Gradients that are accumulated are checked as well: what isn't finite must not be
            // kept for the next update. Those of tied parameters aren't added yet.
            let excluded = match task.uses_gradients() {
                true => self.settings.tied_copies(),
                false => HashSet::new(),
            };
            self.layers.iter().map(|layer| layer.squares(&excluded)).collect()
        } else {
            Vec::new()
        };
        let without_gradient = match task {
            Task::Train(_) => {
                self.layers.iter().flat_map(|layer| layer.without_gradient()).collect()
            }
            _ => Vec::new(),
        };
        let current = self.current()?;
        // All that a step reads from the device, it reads here at once.
        let mut reading = Reading::default();
        let squares: Vec<Places> = squares.into_iter().map(|sums| reading.add(sums)).collect();
        let added: Vec<Places> =
            current.added.values().map(|sum| reading.add([sum.clone()])).collect();
        let mut pair = |(sum, weight): &(Tensor<1>, Weight)| {
            let sum = reading.add([sum.clone()]);
            match weight {
                Weight::Known(weight) => (sum, *weight, reading.add([])),
                Weight::OnDevice(weight) => (sum, 0.0, reading.add([weight.clone()])),
            }
        };
        let losses: Vec<_> = current.losses.values().map(&mut pair).collect();
        let metrics: Vec<_> = current.metrics.values().map(&mut pair).collect();
        let backend = self.settings.backend.name();
        let sums = reading.read().map_err(|reason| BackendError::failed(backend, reason))?;
        let number = |places: &Places| sums.at(places);
        let numbers =
            |(sum, known, weight): &(Places, f64, Places)| (number(sum), known + number(weight));
        Ok(Report {
            squared_norms: squares.iter().map(number).collect(),
            added: added.iter().map(number).collect(),
            losses: losses.iter().map(numbers).collect(),
            metrics: metrics.iter().map(numbers).collect(),
            without_gradient,
        })
    }

    /// Finds from the reports of all stages how gradients are averaged, and prepares atomic
    /// updates.
    pub(super) fn prepare_update(&mut self, reports: &[Report]) -> Result<(), StageError> {
        let (_, weight) = sum_and_weight_of(reports);
        let batch = Arc::clone(&self.current()?.batch);
        let is_update = matches!(batch.task, Task::Train(_));
        let weight = if is_update { self.carried.weight + weight } else { weight };
        // A mini-batch of weight zero is allowed if others are added to it.
        if !(weight.is_finite() && (weight > 0.0 || matches!(batch.task, Task::Accumulate))) {
            return Err(StageError::Weight { weight });
        }
        // The norm of the sums, since a mini-batch that is accumulated may have no weight.
        let norm = norm_of(reports, 1.0);
        let hands_out_gradients = matches!(batch.task, Task::Gradients);
        if let Some(norm) = norm.filter(|norm| !norm.is_finite() && !hands_out_gradients) {
            // All stages see the same norm, and so does the pipeline.
            self.current()?.overflowed = true;
            return match self.settings.forgets_overflows {
                true => Ok(()),
                false => Err(StageError::Norm { norm }),
            };
        }
        let clipping = self.settings.clipping.filter(|_| is_update);
        let norm = norm.map(|norm| norm / (weight * batch.scale));
        let averaging =
            Averaging { scale: batch.scale, ..Averaging::clipped(weight, clipping, norm) };
        self.current()?.averaging = averaging;
        match &batch.task {
            Task::Train(rate) if self.settings.atomic_updates => {
                for layer in &mut self.layers {
                    layer.guarded(|layer| layer.prepare_update(rate, averaging))?;
                }
            }
            // They are read from the device, which may fail, while that changes nothing.
            Task::Gradients => self.take_gradients(averaging)?,
            _ => {}
        }
        Ok(())
    }

    /// Takes the averaged gradients out, by path; tied ones by the path of their first use.
    fn take_gradients(&mut self, averaging: Averaging) -> Result<(), StageError> {
        let layers = self.layers.iter_mut();
        let mut gradients: BTreeMap<_, _> =
            layers.flat_map(|layer| layer.take_gradients(averaging)).collect();
        let copies = self.settings.tied_copies();
        gradients.retain(|path, _| !copies.contains(path));
        self.current()?.gradients = gradients;
        Ok(())
    }

    /// Does what the step was for: updates, or carries the gradients over.
    pub(super) fn commit_update(&mut self) -> Result<(), StageError> {
        let current = self.current()?;
        if current.overflowed {
            self.layers.iter_mut().for_each(|layer| layer.abandon());
            return Ok(());
        }
        let (averaging, batch) = (current.averaging, Arc::clone(&current.batch));
        match &batch.task {
            Task::Train(rate) => {
                for layer in &mut self.layers {
                    layer.guarded(|layer| layer.commit(rate, averaging))?;
                }
                self.carried = Carried::default();
                self.commit_observed()?;
                // An update that was prepared has been flushed; here a failure couldn't be taken
                // back.
                if !self.settings.atomic_updates {
                    self.flush()?;
                }
            }
            Task::Accumulate => {
                self.layers.iter_mut().for_each(|layer| layer.carry());
                self.carried.weight += averaging.weight;
                self.carried.scale = averaging.scale;
                self.commit_observed()?;
            }
            Task::Gradients | Task::Evaluate | Task::Predict => {}
        }
        Ok(())
    }

    /// Moves running statistics by the observations of the step.
    fn commit_observed(&mut self) -> Result<(), StageError> {
        let mut layers: BTreeMap<usize, Vec<Vec<Observation>>> = BTreeMap::new();
        for ((layer, _), seen) in std::mem::take(&mut self.current()?.observed) {
            layers.entry(layer).or_default().push(seen);
        }
        layers.into_values().for_each(commit_observations);
        Ok(())
    }
}
