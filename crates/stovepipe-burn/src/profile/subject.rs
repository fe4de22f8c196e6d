//! Neighbouring layers under measurement: forwards, backwards and updates, timed one by one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::{Device, TensorData};
use stovepipe_tune::{LayerProfile, Measurement, Time};

use crate::autodiff::backward::run_backward;
use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::layer_run::LayerRun;
use crate::autodiff::loss_tape::LossTape;
use crate::autodiff::tape::{Entry, Forward, Forwarded, Tape};
use crate::backend::Backend;
use crate::error::stage::StageError;
use crate::layer::context::{ForwardKey, Pass, SkipValues};
use crate::loss::erasure::ErasedLoss;
use crate::parameters::averaging::Averaging;
use crate::profile::profiling::Profiling;
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};
use crate::value::side::SideValues;

/// The values that neighbouring layers begin with.
pub(super) struct Start {
    /// Says whether they are the first layers of the model.
    pub(super) is_first: bool,
    pub(super) inputs: Values,
    /// The skip values that were stashed before and are still to be popped, for each size.
    pub(super) skip_values: Vec<SkipValues>,
}

/// The bytes of each stashed skip value at each size, by the layer that stashes it and the name
/// that it uses.
pub(super) type Stashed = BTreeMap<(usize, String), Vec<u64>>;

/// A layer's inputs or outputs, for each size.
pub(super) type Values = Vec<Vec<Box<dyn Part>>>;

/// The loss behind the last layer of a model, and its targets for each size.
pub(super) type LossAndTargets = Option<(Arc<ErasedLoss>, Vec<Packet>)>;

/// Neighbouring layers under measurement.
pub(super) struct Subject {
    pub(super) layers: Vec<Box<dyn ErasedLayer>>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) device: Device,
    pub(super) is_first: bool,
    /// The inputs of the first of them, for each size.
    pub(super) inputs: Values,
    pub(super) skip_values: Vec<SkipValues>,
    /// The loss behind the last of them, if they end the model.
    pub(super) loss: LossAndTargets,
    pub(super) atomic_updates: bool,
    /// The samples of each size.
    pub(super) sizes: Vec<usize>,
    /// The side inputs of each size, by name.
    pub(super) side: Vec<SideValues>,
}

/// The results of one forward of all layers.
pub(super) struct Forwards {
    /// The seconds that each layer took.
    pub(super) seconds: Vec<f64>,
    pub(super) tapes: Vec<Tape>,
    /// The outputs of each layer.
    pub(super) outputs: Vec<Vec<Box<dyn Part>>>,
    /// The skip values that were stashed and not popped.
    pub(super) skip_values: SkipValues,
    pub(super) loss: Option<LossTape>,
}

/// The results of one forward of one layer, and of the loss behind it.
pub(super) struct LayerForward {
    pub(super) outputs: Vec<Box<dyn Part>>,
    pub(super) tape: Tape,
    pub(super) loss: Option<LossTape>,
}

/// The results of one forward and one backward of all layers: the seconds that each layer took,
/// and its outputs.
pub(super) struct ForwardBackward {
    pub(super) forward: Vec<f64>,
    pub(super) backward: Vec<f64>,
    pub(super) outputs: Vec<Vec<Box<dyn Part>>>,
}

/// The seconds of one layer at one size, run by run.
#[derive(Default)]
pub(super) struct Times {
    pub(super) forward: Vec<f64>,
    pub(super) recompute: Vec<f64>,
    pub(super) backward: Vec<f64>,
}

impl Subject {
    /// Measures what each layer takes and needs, except activations. Returns that, what is
    /// stashed, and what the next layers begin with.
    pub(super) fn measure(
        &mut self,
        profiling: &Profiling,
        rate: &ModuleLearningRate,
        current: &AtomicUsize,
    ) -> Result<(Vec<LayerProfile>, Stashed, Start), StageError> {
        let mut stashed = Stashed::new();
        let mut measurements: Vec<Vec<Measurement>> =
            self.layers.iter().map(|_| Vec::new()).collect();
        let mut end = Start { is_first: false, inputs: Vec::new(), skip_values: Vec::new() };
        for index in 0..profiling.sizes.len() {
            current.store(index, Ordering::Relaxed);
            for (of_layer, measured) in
                measurements.iter_mut().zip(self.measure_size(index, profiling)?)
            {
                of_layer.push(measured);
            }
            let made = self.forwards(index, Pass::Train)?;
            for (layer, tape) in made.tapes.iter().enumerate() {
                for (name, value) in tape.stashed_values() {
                    stashed.entry((layer, name)).or_default().push(bytes(&value.into_values()));
                }
            }
            end.inputs.extend(made.outputs.into_iter().next_back());
            end.skip_values.push(made.skip_values);
        }
        let updates = self.updates(profiling.runs, rate)?;
        let optimizer_bytes = self.optimizer_bytes(rate)?;
        self.run(self.inputs.len() - 1)?;
        for layer in &mut self.layers {
            layer.complete(None);
        }
        let bytes_of = |data: BTreeMap<String, TensorData>| {
            data.values().map(|data| data.as_bytes().len() as u64).sum()
        };
        let measured = self.layers.iter_mut().zip(measurements).zip(updates).zip(optimizer_bytes);
        let profiles =
            measured.map(|(((layer, measurements), update), optimizer_bytes)| LayerProfile {
                name: layer.name().to_owned(),
                parameter_bytes: bytes_of(layer.parameters()) + layer.copy_bytes(),
                gradient_bytes: bytes_of(layer.take_gradients(Averaging::mean(1.0))),
                optimizer_bytes,
                update_bytes: 0,
                staged_bytes: 0,
                update: Time::of(update),
                measurements,
            });
        Ok((profiles.collect(), stashed, end))
    }

    /// Measures each layer at one size, without its memory.
    fn measure_size(
        &mut self,
        index: usize,
        profiling: &Profiling,
    ) -> Result<Vec<Measurement>, StageError> {
        for _ in 0..profiling.warm_up {
            self.run(index)?;
        }
        let mut times: Vec<Times> = self.layers.iter().map(|_| Times::default()).collect();
        let mut outputs = Vec::new();
        for _ in 0..profiling.runs {
            let ForwardBackward { forward, backward, outputs: returned } = self.run(index)?;
            let recompute = self.forwards(index, Pass::Recompute)?.seconds;
            for (layer, times) in times.iter_mut().enumerate() {
                times.forward.push(forward[layer]);
                times.recompute.push(recompute[layer]);
                times.backward.push(backward[layer]);
            }
            outputs = returned;
        }
        let mut input_bytes = bytes(&self.inputs[index]);
        let measured = times.into_iter().zip(outputs).map(|(times, outputs)| {
            let output_bytes = bytes(&outputs);
            let measurement = Measurement {
                samples: profiling.sizes[index],
                forward: Time::of(times.forward),
                recompute: Time::of(times.recompute),
                backward: Time::of(times.backward),
                input_bytes,
                output_bytes,
                memory: None,
            };
            input_bytes = output_bytes;
            measurement
        });
        Ok(measured.collect())
    }

    /// Returns the bytes of each layer's optimizer state after an update.
    fn optimizer_bytes(&mut self, rate: &ModuleLearningRate) -> Result<Vec<u64>, StageError> {
        self.run(self.inputs.len() - 1)?;
        let mut optimizer_bytes = Vec::with_capacity(self.layers.len());
        for layer in &mut self.layers {
            layer.complete(None);
            layer.prepare_update(rate, Averaging::mean(1.0))?;
            optimizer_bytes.push(layer.prepared_state_bytes());
            layer.abandon();
        }
        Ok(optimizer_bytes)
    }

    /// Returns the seconds of each layer's updates, run by run. They move the parameters, so
    /// this comes after all other times.
    pub(super) fn updates(
        &mut self,
        runs: usize,
        rate: &ModuleLearningRate,
    ) -> Result<Vec<Vec<f64>>, StageError> {
        let mut updates: Vec<Vec<f64>> = self.layers.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs {
            self.run(self.inputs.len() - 1)?;
            for (layer, seconds) in self.layers.iter_mut().zip(&mut updates) {
                let start = Instant::now();
                layer.complete(None);
                if self.atomic_updates {
                    layer.prepare_update(rate, Averaging::mean(1.0))?;
                }
                layer.commit(rate, Averaging::mean(1.0))?;
                self.backend.synchronize(&self.device)?;
                seconds.push(start.elapsed().as_secs_f64());
                layer.abandon();
            }
        }
        Ok(updates)
    }

    /// Runs forward and backward once.
    pub(super) fn run(&mut self, index: usize) -> Result<ForwardBackward, StageError> {
        let Forwards { seconds: forward, tapes, outputs, mut loss, .. } =
            self.forwards(index, Pass::Train)?;
        // For the time any values will do as gradients: the outputs have the right shapes.
        let mut gradients: Vec<_> =
            outputs.last().map(|parts| copied(parts)).into_iter().flatten().map(Some).collect();
        let mut backward = Vec::with_capacity(self.layers.len());
        let mut popped = SkipValues::new();
        for (layer, tape) in self.layers.chunks_mut(1).zip(tapes).rev() {
            // Skip values that later layers than these pop get gradients of that kind, too.
            let mut stashed = tape.stashed_values();
            for (name, gradient) in &mut stashed {
                if let Some(popped) = popped.remove(name) {
                    *gradient = popped;
                }
            }
            let start = Instant::now();
            if let Some(loss) = loss.take() {
                gradients = loss.backward(1.0);
            }
            let done = run_backward(layer, tape, gradients, stashed, 1.0)?;
            self.backend.synchronize(&self.device)?;
            backward.push(start.elapsed().as_secs_f64());
            gradients = done.inputs;
            popped.extend(done.popped);
        }
        backward.reverse();
        Ok(ForwardBackward { forward, backward, outputs })
    }

    /// Runs all layers forward once, and the loss behind the last layer of the model.
    pub(super) fn forwards(&mut self, index: usize, pass: Pass) -> Result<Forwards, StageError> {
        let count = self.layers.len();
        let mut done = Forwards {
            seconds: Vec::with_capacity(count),
            tapes: Vec::with_capacity(count),
            outputs: Vec::with_capacity(count),
            skip_values: self.skip_values[index].clone(),
            loss: None,
        };
        let mut values = copied(&self.inputs[index]);
        for layer in 0..count {
            let start = Instant::now();
            let LayerForward { outputs, tape, loss } =
                self.forward(layer, index, values, pass, &mut done.skip_values)?;
            values = copied(&outputs);
            done.loss = loss;
            done.seconds.push(start.elapsed().as_secs_f64());
            done.tapes.push(tape);
            done.outputs.push(outputs);
        }
        Ok(done)
    }

    /// Runs one layer forward, and the loss behind the last layer of the model.
    pub(super) fn forward(
        &mut self,
        layer: usize,
        index: usize,
        inputs: Vec<Box<dyn Part>>,
        pass: Pass,
        skip_values: &mut SkipValues,
    ) -> Result<LayerForward, StageError> {
        let entry = if self.is_first && layer == 0 { Entry::Constants } else { Entry::Leaves };
        let mode = Forward::Taped(entry);
        let Forwarded { tape, .. } =
            self.run_layer(layer, index, inputs, (pass, mode), skip_values)?;
        let tape = tape.ok_or_else(|| StageError::Order {
            layer: self.layers[layer].name().to_owned(),
            problem: "its forward left nothing for a backward",
        })?;
        let outputs = tape.values();
        let loss = match self.loss.as_ref().filter(|_| layer + 1 == self.layers.len()) {
            Some((loss, targets)) => {
                let target = self.backend.receive(targets[index].clone(), &self.device)?;
                Some(LossTape::record(&**loss, copied(&outputs), target)?.0)
            }
            None => None,
        };
        self.backend.synchronize(&self.device)?;
        Ok(LayerForward { outputs, tape, loss })
    }

    /// Runs one layer forward, without a loss; with a tape or without.
    pub(super) fn run_layer(
        &mut self,
        layer: usize,
        index: usize,
        inputs: Vec<Box<dyn Part>>,
        (pass, mode): (Pass, Forward),
        skip_values: &mut SkipValues,
    ) -> Result<Forwarded, StageError> {
        let run = LayerRun {
            backend: &*self.backend,
            device: &self.device,
            pass,
            key: ForwardKey::default(),
            samples: 0..self.sizes[index],
            side: Some(&self.side[index]),
        };
        let ends_model = self.loss.is_some() && layer + 1 == self.layers.len();
        let layer = &mut *self.layers[layer];
        let mut forwarded = run.forward(layer, inputs, mode, |skip| skip_values.remove(skip))?;
        if ends_model {
            let taped = forwarded.tape.as_ref().map(|tape| &tape.outputs);
            run.check_output(layer, taped.unwrap_or(&forwarded.outputs))?;
        }
        skip_values.extend(std::mem::take(&mut forwarded.stashed));
        Ok(forwarded)
    }
}

/// Returns the bytes of these parts.
pub(super) fn bytes(parts: &[Box<dyn Part>]) -> u64 {
    parts.iter().map(|part| part.bytes()).sum()
}
