//! The end of a step in a stage: its report, the preparation of its update with the reports of
//! all, the commit.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use burn::tensor::Tensor;

use crate::autodiff::tape::free_abandoned;
use crate::error::StageError;
use crate::layer::statistics::{Observation, commit_observations};
use crate::loss::Weight;
use crate::parameters::averaging::{Averaging, Clipping};
use crate::stage::batch::Task;
use crate::stage::burn_stage::{BurnStage, Carried};
use crate::stage::report::{Report, norm_of, sum_and_weight_of};
use crate::stage::tied_gradients::{tied_squared_norm, tied_sums};

impl BurnStage {
    /// Completes the gradients, and reports what all stages must know of them.
    pub(super) fn report(&mut self) -> Result<Report, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let task = &batch.task;
        let keeps_gradients = matches!(task, Task::Train(_) | Task::Accumulate);
        // Gradients that were carried over may have been made at another scale.
        let carried = keeps_gradients.then_some(batch.scale / self.carried.scale);
        for layer in &mut self.layers {
            layer.complete(carried);
        }
        if task.trains() {
            // All are asked, whatever the first one says.
            let forgot = self.layers.iter_mut().map(|layer| layer.forget_unused());
            if forgot.fold(false, |any, forgot| any | forgot) {
                free_abandoned(&self.device);
            }
        }
        let clips_by_norm = matches!(self.settings.clipping, Some(Clipping::Norm(_)));
        let checks_gradients = self.settings.forgets_overflows && matches!(task, Task::Gradients);
        let squared_norms = if checks_gradients
            || keeps_gradients && (clips_by_norm || self.settings.forgets_overflows)
        {
            // Gradients that are accumulated are checked as well: what isn't finite must not be
            // kept for the next update. Their tied parameters aren't reported apart, and so
            // count here.
            let excluded = match task {
                Task::Train(_) | Task::Gradients => self.settings.tied_paths(),
                _ => HashSet::new(),
            };
            self.layers.iter().map(|layer| layer.squared_norm(&excluded)).collect()
        } else {
            Vec::new()
        };
        let mut tied = Vec::new();
        if matches!(task, Task::Train(_) | Task::Gradients) {
            for (number, (layer, path)) in self.tied_uses() {
                tied.extend(self.layers[layer].gradient(&path).map(|g| (number, g)));
            }
        }
        let without_gradient = match task {
            Task::Train(_) => {
                self.layers.iter().flat_map(|layer| layer.without_gradient()).collect()
            }
            _ => Vec::new(),
        };
        // The step reads from the device only here and for the norms.
        let current = self.current()?;
        let value = |sum: &Tensor<1>| sum.to_data().iter::<f64>().sum::<f64>();
        let pair = |(sum, weight): &(Tensor<1>, Weight)| (value(sum), weight.read());
        Ok(Report {
            squared_norms,
            added: current.added.values().map(value).collect(),
            losses: current.losses.values().map(pair).collect(),
            metrics: current.metrics.values().map(pair).collect(),
            without_gradient,
            tied,
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
        let sums = tied_sums(&self.settings.ties, reports);
        for (layer, path, sum) in self.sums_of_uses(&sums) {
            self.layers[layer].set_gradient(&path, sum);
        }
        // The norm of the sums, since a mini-batch that is accumulated may have no weight.
        let norm = norm_of(reports, tied_squared_norm(&sums), 1.0);
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

    /// Returns this stage's uses of tied parameters: the number among all uses, the layer of
    /// the stage and the path.
    fn tied_uses(&self) -> Vec<(u64, (usize, String))> {
        let uses = self.settings.ties.iter().flatten().enumerate();
        let own = uses.filter_map(|(number, tied)| {
            let layer = tied.layer.checked_sub(self.first_layer)?;
            (layer < self.layers.len()).then(|| (number as u64, (layer, tied.path.clone())))
        });
        own.collect()
    }

    /// Returns the layer of the stage, the path and the sum of gradients for each of these
    /// uses.
    ///
    /// Uses of parameters without a gradient are absent.
    fn sums_of_uses<'a>(&self, sums: &'a [Option<Vec<f32>>]) -> Vec<(usize, String, &'a [f32])> {
        let sum_by_use =
            self.settings.ties.iter().zip(sums).flat_map(|(tie, sum)| tie.iter().map(move |_| sum));
        let sum_by_use: Vec<_> = sum_by_use.collect();
        let uses = self.tied_uses().into_iter();
        uses.filter_map(|(number, (layer, path))| {
            Some((layer, path, &**sum_by_use[number as usize].as_ref()?))
        })
        .collect()
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
