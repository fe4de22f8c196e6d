//! The measurement of a model, layer by layer: what each layer takes and needs at each size of
//! a micro-batch.
//!
//! What follows from it is computed in `stovepipe-tune`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use stovepipe_runtime::RankThread;
use stovepipe_tune::{LayerProfile, Measurement, Profile, SkipProfile, Time};

use crate::backend::Backend;
use crate::backend::rank_job::RankJob;
use crate::error::build::BuildError;
use crate::error::profile::ProfileError;
use crate::error::stage::StageError;
use crate::layer::context::SkipValues;
use crate::loss::erasure::ErasedLoss;
use crate::model::layer_spec::{LayerSpec, MakeContext, first_trained};
use crate::model::skips::{Skip, skips_of};
use crate::parameters::generator::LentGenerator;
use crate::pipeline::builder::Builder;
use crate::pipeline::optimizer_trial::check_optimizer;
use crate::pipeline::precision::Precision;
use crate::pipeline::settings::Settings;
use crate::profile::counter::MemoryCounter;
use crate::profile::profiling::Profiling;
use crate::profile::subject::{LossAndTargets, Start, Stashed, Subject, Values};
use crate::value::boundary::{Boundary, into_packet};
use crate::value::packet::Packet;
use crate::value::part::copied;
use crate::value::side::{SideValues, slice_all};

impl<I: Boundary, O: Boundary, T: Boundary> Builder<I, O, T> {
    /// Measures the model's layers on the backend's first device, with the first samples of a
    /// mini-batch.
    ///
    /// The loss counts as a part of the last layer. Layers in front of the first one that trains
    /// have no backward.
    ///
    /// Layers are made a few at a time, and thrown away: whatever is built afterwards starts as
    /// if nothing had been measured.
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
        let _generator = LentGenerator::take();
        let layer_facts = self.model.check()?;
        let settings = &self.settings;
        settings.check(&self.model.layers)?;
        let backend = settings.backend()?;
        let loss = self.loss.clone().ok_or(missing("loss", "loss"))?;
        let device = first_device(&*backend)?;
        let used = std::slice::from_ref(&device);
        let precision = Precision::new(settings, used, &self.model.layers, &layer_facts)?;
        if let Some(optimizer) = &settings.optimizer {
            check_optimizer(optimizer, &self.model.layers, &layer_facts)?;
        }
        let sizes = &profiling.sizes;
        let input = into_packet(input);
        let samples = input.samples().map_err(unfit("input"))?;
        let inputs = cut_to_sizes("input", &input, samples, sizes)?;
        let targets = cut_to_sizes("target", &into_packet(target), samples, sizes)?;
        let side = cut_side_inputs(profiling, samples)?;
        let start = Start {
            is_first: true,
            inputs: received(inputs, &*backend, &device)?,
            skip_values: vec![SkipValues::new(); sizes.len()],
        };
        let skips = skips_of(&self.model.layers, &layer_facts)?;
        let bench = self.bench(backend, device, precision, side, profiling);
        let (mut layers, stashed, workspace) =
            bench.measure_all(&self.model.layers, start, (loss, targets))?;
        // Nothing in front of what trains is recorded, recomputed or run backward.
        for layer in &mut layers[..first_trained(&layer_facts).unwrap_or(0)] {
            layer.measurements.iter_mut().for_each(without_backward);
        }
        let name = format!("{} {}", bench.backend.name(), bench.backend.device_name(&bench.device));
        let skips = skips.into_iter().filter_map(|Skip { called, from, to, .. }| {
            let bytes = stashed.get(&(from, called))?.clone();
            Some(SkipProfile { from, to, bytes })
        });
        let profile = Profile::new(name, layers)?.with_workspace(workspace);
        Ok(profile.with_skips(skips.collect::<Vec<_>>())?)
    }

    /// Collects what all layers are measured with.
    fn bench<'a>(
        &self,
        backend: Arc<dyn Backend>,
        device: Device,
        precision: Precision,
        side: Vec<SideValues>,
        profiling: &'a Profiling,
    ) -> Bench<'a> {
        let Settings { optimizer, rates, seed, atomic_updates, .. } = &self.settings;
        let mut rates = rates.clone().unwrap_or_else(|| ModuleLrScheduler::new(1e-3));
        Bench {
            backend,
            device,
            seed: *seed,
            optimizer: optimizer.clone().unwrap_or_else(|| SgdConfig::new().init()),
            precision,
            rate: rates.step(),
            atomic_updates: *atomic_updates,
            side,
            profiling,
        }
    }
}

/// Leaves the forward of a layer that has no backward.
fn without_backward(measurement: &mut Measurement) {
    (measurement.recompute, measurement.backward) = (Time::default(), Time::default());
    if let Some(memory) = &mut measurement.memory {
        (memory.activations, memory.backward) = (measurement.input_bytes, 0);
        memory.forward = memory.untaped;
    }
}

/// Says that a builder's method hasn't been called.
fn missing(what: &'static str, method: &'static str) -> BuildError {
    BuildError::Missing { what, method }
}

/// Returns the device that layers are measured on.
fn first_device(backend: &dyn Backend) -> Result<Device, BuildError> {
    backend.devices()?.into_iter().next().ok_or(missing("device", "backend"))
}

/// Makes the error for a value that can't be cut. `what` names it.
fn unfit(what: &'static str) -> impl Fn(String) -> ProfileError {
    move |reason| ProfileError::Batch { what, reason }
}

/// Cuts the first samples off a packet, as many as each size says. `what` names it in errors.
///
/// Refuses one that hasn't as many samples as the input.
fn cut_to_sizes(
    what: &'static str,
    packet: &Packet,
    samples: usize,
    sizes: &[usize],
) -> Result<Vec<Packet>, ProfileError> {
    let found = packet.samples().map_err(unfit(what))?;
    if found != samples {
        return Err(unfit(what)(format!("it has {found} samples, the input {samples}")));
    }
    if sizes.is_empty() || sizes[0] == 0 || sizes.iter().any(|&size| size > samples) {
        return Err(ProfileError::Sizes { sizes: sizes.to_vec(), samples });
    }
    Ok(sizes.iter().map(|&size| packet.slice(&(0..size))).collect())
}

/// Cuts the side inputs likewise, and returns them by size and name.
fn cut_side_inputs(profiling: &Profiling, samples: usize) -> Result<Vec<SideValues>, ProfileError> {
    for (name, value) in &profiling.side {
        let Some(found) = value.samples() else { continue };
        let unfit = |reason| unfit("side input")(format!("`{name}`: {reason}"));
        let found = found.map_err(unfit)?;
        if found != samples {
            return Err(unfit(format!(
                "it has {found} samples, the input {samples}; what isn't per sample is given with \
                 `side_constant`"
            )));
        }
    }
    Ok(profiling.sizes.iter().map(|&size| slice_all(&profiling.side, &(0..size))).collect())
}

/// Moves the inputs to the device.
fn received(
    inputs: Vec<Packet>,
    backend: &dyn Backend,
    device: &Device,
) -> Result<Values, BuildError> {
    let received = inputs.into_iter().map(|packet| backend.receive(packet, device));
    Ok(received.map(|packet| packet.map(Packet::into_values)).collect::<Result<_, _>>()?)
}

/// The settings that all layers are measured with.
pub(super) struct Bench<'a> {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) device: Device,
    pub(super) seed: u64,
    pub(super) optimizer: ModuleOptimizer,
    pub(super) precision: Precision,
    pub(super) rate: ModuleLearningRate,
    pub(super) atomic_updates: bool,
    pub(super) side: Vec<SideValues>,
    pub(super) profiling: &'a Profiling,
}

impl Bench<'_> {
    /// Measures all layers, a few at a time.
    ///
    /// Returns their profiles, what is stashed, and the bytes that a rank thread keeps for itself:
    /// those of the layers that need most.
    fn measure_all(
        &self,
        layer_specs: &[LayerSpec],
        mut start: Start,
        loss: (Arc<ErasedLoss>, Vec<Packet>),
    ) -> Result<(Vec<LayerProfile>, Stashed, u64), ProfileError> {
        let count = layer_specs.len();
        let mut stashed = Stashed::new();
        let mut layers = Vec::with_capacity(count);
        let mut workspace = 0;
        for together in layer_specs.chunks(self.profiling.together) {
            self.tell_progress(together, layers.len(), count);
            let is_last = layers.len() + together.len() == count;
            let loss = is_last.then(|| loss.clone());
            if let Some(counter) = &self.profiling.memory {
                workspace = self.workspace(together, &start, &loss, counter)?.max(workspace);
            }
            let (measured, of_these, end) = self.measure(together, start, loss)?;
            let numbered = of_these
                .into_iter()
                .map(|((layer, name), bytes)| ((layers.len() + layer, name), bytes));
            stashed.extend(numbered);
            layers.extend(measured);
            start = end;
        }
        Ok((layers, stashed, workspace))
    }

    /// Tells of the layers that come next, after those that are `done`.
    fn tell_progress(&self, layer_specs: &[LayerSpec], done: usize, count: usize) {
        if let Some(progress) = &self.profiling.progress {
            for (layer_spec, number) in layer_specs.iter().zip(done + 1..) {
                progress(&layer_spec.name, number, count);
            }
        }
    }

    /// Makes layers and gives them what they begin with.
    pub(super) fn subject(
        &self,
        layer_specs: &[LayerSpec],
        start: &Start,
        loss: &LossAndTargets,
    ) -> Subject {
        let make = |layer_spec: &LayerSpec| {
            (layer_spec.make)(&MakeContext {
                seed: self.seed,
                device: &self.device,
                optimizer: &self.optimizer,
                compute: self.precision.of_layer(&layer_spec.name),
            })
        };
        Subject {
            layers: layer_specs.iter().map(make).collect(),
            backend: Arc::clone(&self.backend),
            device: self.device.clone(),
            is_first: start.is_first,
            inputs: start.inputs.iter().map(|parts| copied(parts)).collect(),
            skip_values: start.skip_values.clone(),
            loss: loss.clone(),
            atomic_updates: self.atomic_updates,
            sizes: self.profiling.sizes.clone(),
            side: self.side.clone(),
        }
    }

    /// Returns the bytes that a rank thread keeps for itself once these layers have run on it.
    pub(super) fn workspace(
        &self,
        layer_specs: &[LayerSpec],
        start: &Start,
        loss: &LossAndTargets,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<u64, ProfileError> {
        let thread = self.backend.rank_thread(0).map_err(BuildError::from)?;
        let (mut subject, counter) = (self.subject(layer_specs, start, loss), Arc::clone(counter));
        finished(RankJob::spawn(thread, move || subject.workspace(&counter)), layer_specs)
    }

    /// Measures neighbouring layers. Returns their profiles, what they stash, and what the next
    /// layers begin with.
    pub(super) fn measure(
        &self,
        layer_specs: &[LayerSpec],
        start: Start,
        loss: LossAndTargets,
    ) -> Result<(Vec<LayerProfile>, Stashed, Start), ProfileError> {
        let subject = || self.subject(layer_specs, &start, &loss);
        let mut busy_ranks = BusyRanks::default();
        for rank in 1..=self.profiling.busy {
            let thread = self.backend.rank_thread(rank).map_err(BuildError::from)?;
            busy_ranks.start(thread, subject());
        }
        let thread = self.backend.rank_thread(0).map_err(BuildError::from)?;
        let (mut subject, profiling, rate) = (subject(), self.profiling.clone(), self.rate.clone());
        let measured = RankJob::spawn(thread, move || {
            let (mut layers, stashed, made) =
                subject.measure(&profiling, &rate, &busy_ranks.index)?;
            drop(busy_ranks);
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
            Ok((layers, stashed, made))
        });
        finished(measured, layer_specs)
    }
}

/// Waits for a measurement of these layers, and names them if it failed.
fn finished<R>(
    measured: RankJob<Result<R, StageError>>,
    layer_specs: &[LayerSpec],
) -> Result<R, ProfileError> {
    let names = || {
        let names: Vec<&str> = layer_specs.iter().map(|layer_spec| &*layer_spec.name).collect();
        names.join(", ")
    };
    match measured.join() {
        Some(Ok(measured)) => Ok(measured),
        Some(Err(source)) => Err(ProfileError::Layer { layers: names(), source }),
        None => Err(ProfileError::Panicked { layers: names() }),
    }
}

/// Rank threads that run the same layers at the same size meanwhile. They end when this is
/// dropped.
#[derive(Default)]
struct BusyRanks {
    stop: Arc<AtomicBool>,
    /// The number of the size that is measured.
    index: Arc<AtomicUsize>,
    threads: Vec<RankJob<()>>,
}

impl BusyRanks {
    /// Starts a thread that runs layers until this is dropped or they fail.
    fn start(&mut self, thread: Box<dyn RankThread>, mut subject: Subject) {
        let (stop, index) = (Arc::clone(&self.stop), Arc::clone(&self.index));
        self.threads.push(RankJob::spawn(thread, move || {
            while !stop.load(Ordering::Relaxed)
                && subject.run(index.load(Ordering::Relaxed)).is_ok()
            {}
        }));
    }
}

impl Drop for BusyRanks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join();
        }
    }
}
