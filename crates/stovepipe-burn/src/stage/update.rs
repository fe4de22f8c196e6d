//! How a stage ends a step: it reports, prepares its update with what all report, and commits it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use burn::tensor::Tensor;

use crate::error::StageError;
use crate::layer::statistics::{Observation, commit_observations};
use crate::loss::Weight;
use crate::parameters::averaging::{Averaging, Clipping};
use crate::stage::batch::Task;
use crate::stage::burn_stage::{BurnStage, Carried};
use crate::stage::report::{Report, mean_of, norm_of};
use crate::stage::tied_gradients::{tied_squared_norm, tied_sums};

impl BurnStage {
    /// Completes the gradients and says what all stages must know of them.
    pub(super) fn report(&mut self) -> Result<Report, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let task = &batch.task;
        let keeps = matches!(task, Task::Train(_) | Task::Accumulate);
        // Those that were carried over may have been made at another scale.
        let carried = keeps.then_some(batch.scale / self.carried.scale);
        for layer in &mut self.layers {
            layer.complete(carried);
        }
        let clips = matches!(self.settings.clipping, Some(Clipping::Norm(_)));
        let looks = self.settings.forgets_overflows && matches!(task, Task::Gradients);
        let squared_norms = if looks || keeps && (clips || self.settings.forgets_overflows) {
            // What isn't finite must not be kept for the next update either.
            let apart = match task {
                Task::Train(_) | Task::Gradients => self.settings.tied_paths(),
                _ => HashSet::new(),
            };
            self.layers.iter().map(|layer| layer.squared_norm(&apart)).collect()
        } else {
            Vec::new()
        };
        let mut tied = Vec::new();
        if matches!(task, Task::Train(_) | Task::Gradients) {
            for (number, (layer, path)) in self.tied_uses() {
                tied.extend(self.layers[layer].gradient(&path).map(|g| (number, g)));
            }
        }
        // Only here and for the norms does the step read from the device.
        let current = self.current()?;
        let value = |sum: &Tensor<1>| sum.to_data().iter::<f64>().sum::<f64>();
        let pair = |(sum, weight): &(Tensor<1>, Weight)| (value(sum), weight.read());
        Ok(Report {
            squared_norms,
            added: current.added.values().map(value).collect(),
            losses: current.losses.values().map(pair).collect(),
            metrics: current.metrics.values().map(pair).collect(),
            tied,
        })
    }

    /// Prepares the update: from what all stages report to how gradients are averaged.
    pub(super) fn prepare_update(&mut self, reports: &[Report]) -> Result<(), StageError> {
        let (_, weight) = mean_of(reports);
        let batch = Arc::clone(&self.current()?.batch);
        let updates = matches!(batch.task, Task::Train(_));
        let weight = if updates { self.carried.weight + weight } else { weight };
        // A mini-batch without weight is fine if others are added to it.
        if !(weight.is_finite() && (weight > 0.0 || matches!(batch.task, Task::Accumulate))) {
            return Err(StageError::Weight { weight });
        }
        let sums = tied_sums(&self.settings.ties, reports);
        for (layer, path, sum) in self.sums_of_uses(&sums) {
            self.layers[layer].set_gradient(&path, sum);
        }
        // Of the sums: a mini-batch that is accumulated may weigh nothing.
        let norm = norm_of(reports, tied_squared_norm(&sums), 1.0);
        let hands_out = matches!(batch.task, Task::Gradients);
        if let Some(norm) = norm.filter(|norm| !norm.is_finite() && !hands_out) {
            // All stages see the same norm, and so does the pipeline.
            self.current()?.overflowed = true;
            return match self.settings.forgets_overflows {
                true => Ok(()),
                false => Err(StageError::Norm { norm }),
            };
        }
        let clipping = self.settings.clipping.filter(|_| updates);
        let norm = norm.map(|norm| norm / (weight * batch.scale));
        let averaging =
            Averaging { scale: batch.scale, ..Averaging::clipped(weight, clipping, norm) };
        self.current()?.averaging = averaging;
        if let (Task::Train(rate), true) = (&batch.task, self.settings.atomic_updates) {
            for layer in &mut self.layers {
                layer.prepare_update(rate, averaging)?;
            }
        }
        Ok(())
    }

    /// Puts the update in place, or whatever else the step was for.
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
                    layer.commit(rate, averaging)?;
                }
                self.carried = Carried::default();
                self.commit_observed()?;
            }
            Task::Accumulate => {
                self.layers.iter_mut().for_each(|layer| layer.carry());
                self.carried.weight += averaging.weight;
                self.carried.scale = averaging.scale;
                self.commit_observed()?;
            }
            Task::Gradients => {
                let mut gradients = BTreeMap::new();
                for layer in &mut self.layers {
                    gradients.extend(layer.take_gradients(averaging));
                }
                let copies = self.settings.tied_copies();
                gradients.retain(|path, _| !copies.contains(path));
                self.current()?.gradients = gradients;
            }
            Task::Evaluate | Task::Predict => {}
        }
        Ok(())
    }

    /// The uses of tied parameters on this stage: their number among all, layer of the stage and path.
    fn tied_uses(&self) -> Vec<(u64, (usize, String))> {
        let uses = self.settings.ties.iter().flatten().enumerate();
        let own = uses.filter_map(|(number, tied)| {
            let layer = tied.layer.checked_sub(self.first_layer)?;
            (layer < self.layers.len()).then(|| (number as u64, (layer, tied.path.clone())))
        });
        own.collect()
    }

    /// The same with the sum for each.
    fn sums_of_uses<'a>(&self, sums: &'a [Option<Vec<f32>>]) -> Vec<(usize, String, &'a [f32])> {
        let of_use =
            self.settings.ties.iter().zip(sums).flat_map(|(tie, sum)| tie.iter().map(move |_| sum));
        let of_use: Vec<_> = of_use.collect();
        let uses = self.tied_uses().into_iter();
        uses.filter_map(|(number, (layer, path))| {
            Some((layer, path, &**of_use[number as usize].as_ref()?))
        })
        .collect()
    }

    /// Moves running statistics by what the step saw.
    fn commit_observed(&mut self) -> Result<(), StageError> {
        let mut layers: BTreeMap<usize, Vec<Vec<Observation>>> = BTreeMap::new();
        for ((layer, _), seen) in std::mem::take(&mut self.current()?.observed) {
            layers.entry(layer).or_default().push(seen);
        }
        layers.into_values().for_each(commit_observations);
        Ok(())
    }
}
