//! Measuring a model layer by layer: what each takes and needs at every size of a micro-batch that may
//! be run. What is made of it is the business of `stovepipe-tune`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, FloatDType};
use stovepipe_runtime::RankThread;
use stovepipe_tune::{LayerProfile, Profile};

use crate::backend::Backend;
use crate::backend::rank_job::RankJob;
use crate::error::{BuildError, ProfileError, StageError};
use crate::layer::context::SkipValues;
use crate::model::layer_spec::{LayerSpec, MakeContext};
use crate::model::skips::skips_of;
use crate::pipeline::builder::Builder;
use crate::pipeline::checks::check_compute_dtype;
use crate::profile::counter::MemoryCounter;
use crate::profile::profiling::Profiling;
use crate::profile::subject::{LossAndTargets, Start, Subject, Values};
use crate::value::boundary::{Boundary, into_packet};
use crate::value::packet::Packet;
use crate::value::part::copied;

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
        let layer_facts = self.model.check()?;
        let settings = &self.settings;
        settings.check()?;
        let missing = |what, method| BuildError::Missing { what, method };
        let backend = settings.backend()?;
        let loss = self.loss.clone().ok_or(missing("loss", "loss"))?;
        let devices = backend.devices().map_err(BuildError::from)?;
        let device = devices.first().cloned().ok_or(missing("device", "backend"))?;
        let used = std::slice::from_ref(&device);
        check_compute_dtype(settings.compute_dtype, used, &self.model.layers, &layer_facts)?;
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

        let optimizer = settings.optimizer.clone().unwrap_or_else(|| SgdConfig::new().init());
        let mut rates = settings.rates.clone().unwrap_or_else(|| ModuleLrScheduler::new(1e-3));
        let rate = rates.step();
        let atomic_updates = settings.atomic_updates;
        let bench = Bench {
            backend,
            device,
            seed: settings.seed,
            optimizer,
            compute: settings.compute_dtype,
            rate,
            atomic_updates,
            side,
            profiling,
        };
        let count = self.model.layers.len();
        skips_of(&self.model.layers, &layer_facts)?;
        let mut skip_values: Vec<SkipValues> = values.iter().map(|_| SkipValues::new()).collect();
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
            let start = Start { is_first: layers.is_empty(), inputs: values, skip_values };
            if let Some(counter) = &profiling.memory {
                // A rank needs what the greediest of its layers does.
                workspace = bench.workspace(layer_specs, &start, &loss, counter)?.max(workspace);
            }
            let (measured, end) = bench.measure(layer_specs, start, loss)?;
            layers.extend(measured);
            (values, skip_values) = (end.inputs, end.skip_values);
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
            layers: layer_specs.iter().map(|layer_spec| (layer_spec.make)(&context)).collect(),
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
        finished(RankJob::spawn(thread, move || subject.workspace(&counter)), layer_specs)
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
        let measured = RankJob::spawn(thread, move || {
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

/// Threads that run the same layers at the same size meanwhile; they end when this is dropped.
#[derive(Default)]
struct Others {
    stop: Arc<AtomicBool>,
    /// Which size is measured.
    index: Arc<AtomicUsize>,
    threads: Vec<RankJob<()>>,
}

impl Others {
    fn start(&mut self, thread: Box<dyn RankThread>, mut subject: Subject) {
        let (stop, index) = (Arc::clone(&self.stop), Arc::clone(&self.index));
        self.threads.push(RankJob::spawn(thread, move || {
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
            thread.join();
        }
    }
}
