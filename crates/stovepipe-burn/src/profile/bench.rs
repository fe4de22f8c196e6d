//! Measuring a model layer by layer: what each takes and needs at every size of a micro-batch that may
//! be run. What is made of it is the business of `stovepipe-tune`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, FloatDType};
use stovepipe_runtime::RankThread;
use stovepipe_tune::{LayerProfile, Measurement, Profile, Time};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::loss_tape::LossTape;
use crate::autodiff::tape::{Forward, Forwarded, Tape};
use crate::backend::Backend;
use crate::backend::rank_work::{Started, spawn};
use crate::error::{BuildError, ProfileError, StageError};
use crate::layer::context::{ForwardPlace, Side, SkipValues};
use crate::layer::context::{LayerContext, Pass};
use crate::loss::erasure::ErasedLoss;
use crate::model::layer_spec::{LayerSpec, MakeContext};
use crate::model::skips::skips_of;
use crate::parameters::averaging::Averaging;
use crate::pipeline::builder::Builder;
use crate::profile::counter::MemoryCounter;
use crate::profile::profiling::Profiling;
use crate::value::boundary::Boundary;
use crate::value::boundary::into_packet;
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};

impl<I: Boundary, O: Boundary, T: Boundary> Builder<I, O, T> {
    /// Measures the model's layers on the backend's first device, with the first samples of a batch. The
    /// loss counts as a part of the last layer.
    ///
    /// Layers are made a few at a time, and thrown away: whatever is built afterwards starts as if
    /// nothing had been measured.
    ///
    /// # Errors
    ///
    /// [`ProfileError`].
    pub fn profile(
        &self,
        profiling: &Profiling,
        input: I,
        target: T,
    ) -> Result<Profile, ProfileError> {
        let layer_sizes = self.model.check()?;
        self.check()?;
        let missing = |what, method| BuildError::Missing { what, method };
        let backend = self.backend.clone().ok_or(missing("backend", "backend"))?;
        let loss = self.loss.clone().ok_or(missing("loss", "loss"))?;
        let devices = backend.devices().map_err(BuildError::from)?;
        let device = devices.first().cloned().ok_or(missing("device", "backend"))?;
        self.check_compute_dtype(std::slice::from_ref(&device), &layer_sizes)?;
        let cut = |what, packet: Packet| {
            let samples =
                packet.samples().map_err(|reason| ProfileError::Batch { what, reason })?;
            let sizes = &profiling.sizes;
            if sizes.is_empty() || sizes[0] == 0 || sizes.iter().any(|&size| size > samples) {
                return Err(ProfileError::Sizes { sizes: sizes.clone(), samples });
            }
            Ok(sizes.iter().map(|&size| packet.slice(&(0..size))).collect::<Vec<_>>())
        };
        let inputs = cut("input", into_packet(input))?;
        let targets = cut("target", into_packet(target))?;
        let mut side: Vec<BTreeMap<String, Packet>> = vec![BTreeMap::new(); inputs.len()];
        for (name, value) in &profiling.side {
            for (side, piece) in side.iter_mut().zip(cut("side input", value.clone())?) {
                side.insert(name.clone(), piece);
            }
        }
        let received = inputs.into_iter().map(|packet| backend.receive(packet, &device));
        let received = received.map(|packet| packet.map(Packet::into_values));
        let mut values = received.collect::<Result<Values, _>>().map_err(BuildError::from)?;

        let optimizer = self.optimizer.clone().unwrap_or_else(|| SgdConfig::new().init());
        let mut rates = self.rates.clone().unwrap_or_else(|| ModuleLrScheduler::new(1e-3));
        let rate = rates.step();
        let atomic_updates = self.atomic_updates;
        let bench = Bench {
            backend,
            device,
            seed: self.seed,
            optimizer,
            compute: self.compute_dtype,
            rate,
            atomic_updates,
            side,
            profiling,
        };
        let count = self.model.layers.len();
        skips_of(&self.model.layers, &layer_sizes)?;
        let mut skipped: Vec<SkipValues> = values.iter().map(|_| SkipValues::new()).collect();
        let mut layers = Vec::with_capacity(count);
        let mut workspace = 0;
        for layer_specs in self.model.layers.chunks(profiling.together) {
            if let Some(progress) = &profiling.progress {
                for (layer_spec, number) in layer_specs.iter().zip(layers.len() + 1..) {
                    progress(&layer_spec.name, number, count);
                }
            }
            let is_last = layers.len() + layer_specs.len() == count;
            let loss = is_last.then(|| (Arc::clone(&loss), targets.clone()));
            let start = Start { is_first: layers.is_empty(), inputs: values, skipped };
            if let Some(counter) = &profiling.memory {
                // A rank needs what the greediest of its layers does.
                workspace = bench.workspace(layer_specs, &start, &loss, counter)?.max(workspace);
            }
            let (measured, end) = bench.measure(layer_specs, start, loss)?;
            layers.extend(measured);
            (values, skipped) = (end.inputs, end.skipped);
        }
        let name = format!("{} {}", bench.backend.name(), bench.backend.device_name(&bench.device));
        Ok(Profile::new(name, layers)?.with_workspace(workspace))
    }
}

/// What all layers are measured with.
pub(super) struct Bench<'a> {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) device: Device,
    pub(super) seed: u64,
    pub(super) optimizer: ModuleOptimizer,
    pub(super) compute: Option<FloatDType>,
    pub(super) rate: ModuleLearningRate,
    pub(super) atomic_updates: bool,
    pub(super) side: Vec<BTreeMap<String, Packet>>,
    pub(super) profiling: &'a Profiling,
}

/// What neighbouring layers begin with.
pub(super) struct Start {
    pub(super) is_first: bool,
    pub(super) inputs: Values,
    /// What was stashed before and is still to be popped, for each size.
    pub(super) skipped: Vec<SkipValues>,
}

/// A layer's inputs or outputs, for each size.
pub(super) type Values = Vec<Vec<Box<dyn Part>>>;
/// The loss, and its targets for each size.
pub(super) type LossAndTargets = Option<(Arc<ErasedLoss>, Vec<Packet>)>;

impl Bench<'_> {
    pub(super) fn subject(
        &self,
        layer_specs: &[LayerSpec],
        start: &Start,
        loss: &LossAndTargets,
    ) -> Subject {
        let context = MakeContext {
            seed: self.seed,
            device: &self.device,
            optimizer: &self.optimizer,
            compute: self.compute,
        };
        Subject {
            cells: layer_specs.iter().map(|layer_spec| (layer_spec.make)(&context)).collect(),
            backend: Arc::clone(&self.backend),
            device: self.device.clone(),
            is_first: start.is_first,
            inputs: start.inputs.iter().map(|parts| copied(parts)).collect(),
            skipped: start.skipped.clone(),
            loss: loss.clone(),
            atomic_updates: self.atomic_updates,
            sizes: self.profiling.sizes.clone(),
            side: self.side.clone(),
        }
    }

    /// What a rank's threads keep for themselves once they have computed.
    pub(super) fn workspace(
        &self,
        layer_specs: &[LayerSpec],
        start: &Start,
        loss: &LossAndTargets,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<u64, ProfileError> {
        let thread = self.backend.rank_thread(0).map_err(BuildError::from)?;
        let (mut subject, counter) = (self.subject(layer_specs, start, loss), Arc::clone(counter));
        finished(spawn(thread, move || subject.workspace(&counter)), layer_specs)
    }

    /// Measures neighbouring layers, and returns what they make of their inputs.
    pub(super) fn measure(
        &self,
        layer_specs: &[LayerSpec],
        start: Start,
        loss: LossAndTargets,
    ) -> Result<(Vec<LayerProfile>, Start), ProfileError> {
        let subject = || self.subject(layer_specs, &start, &loss);
        let mut others = Others::default();
        for rank in 1..=self.profiling.busy {
            let thread = self.backend.rank_thread(rank).map_err(BuildError::from)?;
            others.start(thread, subject());
        }
        let thread = self.backend.rank_thread(0).map_err(BuildError::from)?;
        let (mut subject, profiling, rate) = (subject(), self.profiling.clone(), self.rate.clone());
        let measured = spawn(thread, move || {
            let (mut layers, made) = subject.measure(&profiling, &rate, &others.index)?;
            drop(others);
            if let Some(counter) = &profiling.memory {
                for index in 0..made.inputs.len() {
                    let found = subject.memory(index, counter)?;
                    for (layer, found) in layers.iter_mut().zip(found) {
                        layer.measurements[index].memory = Some(found);
                    }
                }
                for (layer, found) in layers.iter_mut().zip(subject.update_memory(&rate, counter)?)
                {
                    (layer.update_bytes, layer.staged_bytes) = found;
                }
            }
            Ok((layers, made))
        });
        finished(measured, layer_specs)
    }
}

/// What was measured of these layers.
fn finished<R>(
    measured: Started<Result<R, StageError>>,
    layer_specs: &[LayerSpec],
) -> Result<R, ProfileError> {
    let names = || {
        let names: Vec<&str> = layer_specs.iter().map(|layer_spec| &*layer_spec.name).collect();
        names.join(", ")
    };
    match measured.finish() {
        Some(Ok(measured)) => Ok(measured),
        Some(Err(source)) => Err(ProfileError::Layer { layers: names(), source }),
        None => Err(ProfileError::Panicked { layers: names() }),
    }
}

/// Threads that run the same layers at the same size meanwhile; they end when this is dropped.
#[derive(Default)]
struct Others {
    stop: Arc<AtomicBool>,
    /// Which size is measured.
    index: Arc<AtomicUsize>,
    threads: Vec<Started<()>>,
}

impl Others {
    fn start(&mut self, thread: Box<dyn RankThread>, mut subject: Subject) {
        let (stop, index) = (Arc::clone(&self.stop), Arc::clone(&self.index));
        self.threads.push(spawn(thread, move || {
            while !stop.load(Ordering::Relaxed)
                && subject.run(index.load(Ordering::Relaxed)).is_ok()
            {}
        }));
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.finish();
        }
    }
}

/// Neighbouring layers under measurement.
pub(super) struct Subject {
    pub(super) cells: Vec<Box<dyn ErasedLayer>>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) device: Device,
    pub(super) is_first: bool,
    /// Of the first of them.
    pub(super) inputs: Values,
    pub(super) skipped: Vec<SkipValues>,
    /// Behind the last of them.
    pub(super) loss: LossAndTargets,
    pub(super) atomic_updates: bool,
    /// Samples of each size.
    pub(super) sizes: Vec<usize>,
    /// Side inputs of each size.
    pub(super) side: Vec<BTreeMap<String, Packet>>,
}

/// One forward of all layers.
pub(super) struct Forwards {
    /// Seconds of each layer.
    pub(super) seconds: Vec<f64>,
    pub(super) tapes: Vec<Tape>,
    /// What each layer returned.
    pub(super) outputs: Vec<Vec<Box<dyn Part>>>,
    /// What was stashed and not popped.
    pub(super) skipped: SkipValues,
    pub(super) loss: Option<LossTape>,
}

/// One forward of one layer, and of the loss behind it.
pub(super) struct Ran {
    pub(super) outputs: Vec<Box<dyn Part>>,
    pub(super) tape: Tape,
    pub(super) loss: Option<LossTape>,
}

/// One forward and backward of all layers: seconds of each, and what each returned.
pub(super) struct Run {
    pub(super) forward: Vec<f64>,
    pub(super) backward: Vec<f64>,
    pub(super) outputs: Vec<Vec<Box<dyn Part>>>,
}

/// Seconds of one layer at one size, run by run.
#[derive(Default)]
pub(super) struct Times {
    pub(super) forward: Vec<f64>,
    pub(super) recompute: Vec<f64>,
    pub(super) backward: Vec<f64>,
}

impl Subject {
    /// What each layer takes and needs but for activations, and what each returned at each size.
    pub(super) fn measure(
        &mut self,
        profiling: &Profiling,
        rate: &ModuleLearningRate,
        current: &AtomicUsize,
    ) -> Result<(Vec<LayerProfile>, Start), StageError> {
        let layers = self.cells.len();
        let mut measurements: Vec<Vec<Measurement>> = (0..layers).map(|_| Vec::new()).collect();
        let mut end = Start { is_first: false, inputs: Vec::new(), skipped: Vec::new() };
        for (index, &samples) in profiling.sizes.iter().enumerate() {
            current.store(index, Ordering::Relaxed);
            for _ in 0..profiling.warm_up {
                self.run(index)?;
            }
            let mut times: Vec<Times> = (0..layers).map(|_| Times::default()).collect();
            let mut outputs = Vec::new();
            for _ in 0..profiling.runs {
                let Run { forward, backward, outputs: returned } = self.run(index)?;
                let recompute = self.forwards(index, Pass::Recompute)?.seconds;
                for (layer, times) in times.iter_mut().enumerate() {
                    times.forward.push(forward[layer]);
                    times.recompute.push(recompute[layer]);
                    times.backward.push(backward[layer]);
                }
                outputs = returned;
            }
            let mut input_bytes = bytes(&self.inputs[index]);
            for (layer, (times, outputs)) in times.into_iter().zip(outputs).enumerate() {
                let output_bytes = bytes(&outputs);
                measurements[layer].push(Measurement {
                    samples,
                    forward: Time::of(times.forward),
                    recompute: Time::of(times.recompute),
                    backward: Time::of(times.backward),
                    input_bytes,
                    output_bytes,
                    memory: None,
                });
                input_bytes = output_bytes;
            }
            let made = self.forwards(index, Pass::Train)?;
            end.inputs.extend(made.outputs.into_iter().next_back());
            end.skipped.push(made.skipped);
        }
        let updates = self.updates(profiling.runs, rate)?;
        self.run(self.inputs.len() - 1)?;
        let mut optimizer_bytes = Vec::with_capacity(layers);
        for cell in &mut self.cells {
            cell.complete(None);
            cell.prepare_update(rate, Averaging::mean(1.0))?;
            optimizer_bytes.push(cell.staged_state_bytes());
            cell.abandon();
        }
        self.run(self.inputs.len() - 1)?;
        for cell in &mut self.cells {
            cell.complete(None);
        }
        let of_host = |data: std::collections::BTreeMap<_, burn::tensor::TensorData>| {
            data.values().map(|data| data.as_bytes().len() as u64).sum()
        };
        let measured = self.cells.iter_mut().zip(measurements).zip(updates).zip(optimizer_bytes);
        let profiles =
            measured.map(|(((cell, measurements), update), optimizer_bytes)| LayerProfile {
                name: cell.name().to_owned(),
                parameter_bytes: of_host(cell.parameters()) + cell.copy_bytes(),
                gradient_bytes: of_host(cell.take_gradients(Averaging::mean(1.0))),
                optimizer_bytes,
                update_bytes: 0,
                staged_bytes: 0,
                update: Time::of(update),
                measurements,
            });
        Ok((profiles.collect(), end))
    }

    /// Seconds of each layer's updates. They move its parameters: to be done last.
    pub(super) fn updates(
        &mut self,
        runs: usize,
        rate: &ModuleLearningRate,
    ) -> Result<Vec<Vec<f64>>, StageError> {
        let mut updates: Vec<Vec<f64>> = self.cells.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs {
            self.run(self.inputs.len() - 1)?;
            for (cell, seconds) in self.cells.iter_mut().zip(&mut updates) {
                let start = Instant::now();
                cell.complete(None);
                if self.atomic_updates {
                    cell.prepare_update(rate, Averaging::mean(1.0))?;
                }
                cell.commit(rate, Averaging::mean(1.0))?;
                self.backend.synchronize(&self.device)?;
                seconds.push(start.elapsed().as_secs_f64());
                cell.abandon();
            }
        }
        Ok(updates)
    }

    /// Runs forward and backward once.
    pub(super) fn run(&mut self, index: usize) -> Result<Run, StageError> {
        let Forwards { seconds: forward, tapes, outputs, mut loss, .. } =
            self.forwards(index, Pass::Train)?;
        // Any values will do for time: the outputs have the right shapes.
        let mut gradients: Vec<_> =
            outputs.last().map(|parts| copied(parts)).into_iter().flatten().map(Some).collect();
        let mut backward = Vec::with_capacity(self.cells.len());
        let mut popped = SkipValues::new();
        for (cell, tape) in self.cells.iter_mut().zip(tapes).rev() {
            // Of what is popped in later layers than these, too.
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
            let done = cell.backward(tape, gradients, stashed, 1.0)?;
            self.backend.synchronize(&self.device)?;
            backward.push(start.elapsed().as_secs_f64());
            gradients = done.inputs;
            popped.extend(done.popped);
        }
        backward.reverse();
        Ok(Run { forward, backward, outputs })
    }

    /// Runs forward once, and the loss behind the last layer of all.
    pub(super) fn forwards(&mut self, index: usize, pass: Pass) -> Result<Forwards, StageError> {
        let layers = self.cells.len();
        let mut done = Forwards {
            seconds: Vec::with_capacity(layers),
            tapes: Vec::with_capacity(layers),
            outputs: Vec::with_capacity(layers),
            skipped: self.skipped[index].clone(),
            loss: None,
        };
        let mut values = copied(&self.inputs[index]);
        for layer in 0..layers {
            let start = Instant::now();
            let Ran { outputs, tape, loss } =
                self.forward(layer, index, values, pass, &mut done.skipped)?;
            values = copied(&outputs);
            done.loss = loss;
            done.seconds.push(start.elapsed().as_secs_f64());
            done.tapes.push(tape);
            done.outputs.push(outputs);
        }
        Ok(done)
    }

    /// Runs one layer forward, and the loss behind the last of all.
    pub(super) fn forward(
        &mut self,
        layer: usize,
        index: usize,
        inputs: Vec<Box<dyn Part>>,
        pass: Pass,
        skipped: &mut SkipValues,
    ) -> Result<Ran, StageError> {
        let mode = Forward::Taped { input_gradient: !(self.is_first && layer == 0) };
        let Forwarded { outputs, tape, .. } =
            self.run_layer(layer, index, inputs, (pass, mode), skipped)?;
        let tape = tape.ok_or_else(|| StageError::Order {
            layer: self.cells[layer].name().to_owned(),
            problem: "its forward left nothing for a backward",
        })?;
        let loss = match self.loss.as_ref().filter(|_| layer + 1 == self.cells.len()) {
            Some((loss, targets)) => {
                let target = self.backend.receive(targets[index].clone(), &self.device)?;
                Some(LossTape::record(&**loss, copied(&outputs), target)?.0)
            }
            None => None,
        };
        self.backend.synchronize(&self.device)?;
        Ok(Ran { outputs, tape, loss })
    }

    pub(super) fn run_layer(
        &mut self,
        layer: usize,
        index: usize,
        inputs: Vec<Box<dyn Part>>,
        (pass, mode): (Pass, Forward),
        skipped: &mut SkipValues,
    ) -> Result<Forwarded, StageError> {
        let cell = &mut self.cells[layer];
        let name = cell.name().to_owned();
        let samples = 0..self.sizes[index];
        let side = Side {
            packets: Some(&self.side[index]),
            receiver: Some((&*self.backend, &self.device)),
        };
        let mut context =
            LayerContext::new(pass, ForwardPlace::default(), samples, &name).with_side(side);
        for skip in cell.pops() {
            context.popped.extend(skipped.remove_entry(skip));
        }
        let mut forwarded = cell.forward(inputs, &mut context, mode)?;
        skipped.extend(std::mem::take(&mut forwarded.stashed));
        Ok(forwarded)
    }
}

pub(super) fn bytes(parts: &[Box<dyn Part>]) -> u64 {
    parts.iter().map(|part| part.bytes()).sum()
}
