//! Measuring a model layer by layer: what each takes and needs at every size of a micro-batch that may
//! be run. What is made of it is the business of `stovepipe-tune`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use stovepipe_runtime::Host;
use stovepipe_tune::{LayerProfile, Measurement, Profile, Time};

use crate::boundary::into_packet;
use crate::cell::{Cell, Forward, Tape};
use crate::loss::{ErasedLoss, LossTape};
use crate::part::{Packet, Part};
use crate::sequential::{Blueprint, MakeContext};
use crate::{Backend, Boundary, BuildError, Builder, Context, Phase, ProfileError, StageError};

/// Says how many bytes are allocated on the device.
type LiveBytes = dyn Fn() -> u64 + Send + Sync;
/// Is told the layer that comes next, and how many there are.
type Progress = dyn Fn(&str, usize, usize) + Send + Sync;

/// How layers are measured.
///
/// Every layer is run on its own, forward and backward, in turn at each size. The times are medians over
/// several runs, after some that aren't counted, each until the device is done.
#[derive(Clone)]
pub struct Profiling {
    sizes: Vec<usize>,
    runs: usize,
    warm_up: usize,
    busy: usize,
    live_bytes: Option<Arc<LiveBytes>>,
    progress: Option<Arc<Progress>>,
}

impl Profiling {
    /// At these sizes of a micro-batch, in samples.
    #[must_use]
    pub fn new(sizes: impl Into<Vec<usize>>) -> Self {
        let mut sizes = sizes.into();
        sizes.sort_unstable();
        sizes.dedup();
        Self { sizes, runs: 7, warm_up: 2, busy: 0, live_bytes: None, progress: None }
    }

    /// How many runs are counted: 7 unless said otherwise, at least 1.
    #[must_use]
    pub fn runs(self, runs: usize) -> Self {
        Self { runs: runs.max(1), ..self }
    }

    /// How many runs come before them: 2 unless said otherwise.
    #[must_use]
    pub fn warm_up(self, warm_up: usize) -> Self {
        Self { warm_up, ..self }
    }

    /// Keeps this many further ranks busy with the same layer meanwhile. A layer that has caches and
    /// memory to itself is faster than it will be in a pipeline.
    #[must_use]
    pub fn busy_ranks(self, ranks: usize) -> Self {
        Self { busy: ranks, ..self }
    }

    /// Where the bytes that a layer keeps are read: by default nowhere, and then they are unknown. On the
    /// Flex backend a program can count what its allocator hands out. Nothing else should run meanwhile,
    /// so that only this layer's bytes are counted; the [busy ranks](Self::busy_ranks) have ended by then.
    #[must_use]
    pub fn live_bytes(self, live_bytes: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { live_bytes: Some(Arc::new(live_bytes)), ..self }
    }

    /// Is called before each layer with its name, its number from 1 on, and how many there are.
    #[must_use]
    pub fn progress(self, progress: impl Fn(&str, usize, usize) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }
}

impl<I: Boundary, O: Boundary, T: Boundary> Builder<I, O, T> {
    /// Measures the model's layers on the backend's first device, with the first samples of a batch. The
    /// loss counts as a part of the last layer.
    ///
    /// One layer is made at a time, and thrown away: whatever is built afterwards starts as if nothing
    /// had been measured.
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
        self.model.check()?;
        let missing = |what, method| BuildError::Missing { what, method };
        let backend = self.backend.clone().ok_or(missing("backend", "backend"))?;
        let loss = self.loss.clone().ok_or(missing("loss", "loss"))?;
        let devices = backend.devices().map_err(BuildError::from)?;
        let device = devices.first().cloned().ok_or(missing("device", "backend"))?;
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
        let mut values: Vec<Vec<Box<dyn Part>>> =
            inputs.into_iter().map(|packet| packet.settle(&device).into_values()).collect();

        let optimizer = self.optimizer.clone().unwrap_or_else(|| SgdConfig::new().init());
        let mut rates = self.rates.clone().unwrap_or_else(|| ModuleLrScheduler::new(1e-3));
        let rate = rates.step();
        let bench = Bench { backend, device, seed: self.seed, optimizer, rate, profiling };
        let count = self.model.layers.len();
        let mut layers = Vec::with_capacity(count);
        for (index, blueprint) in self.model.layers.iter().enumerate() {
            if let Some(progress) = &profiling.progress {
                progress(&blueprint.name, index + 1, count);
            }
            let last = index + 1 == count;
            let loss = last.then(|| (Arc::clone(&loss), targets.clone()));
            let (layer, outputs) = bench.measure(blueprint, index == 0, values, loss)?;
            layers.push(layer);
            values = outputs;
        }
        let name = format!("{} {:?}", bench.backend.name(), bench.device);
        Ok(Profile::new(name, layers)?)
    }
}

/// What all layers are measured with.
struct Bench<'a> {
    backend: Arc<dyn Backend>,
    device: Device,
    seed: u64,
    optimizer: ModuleOptimizer,
    rate: ModuleLearningRate,
    profiling: &'a Profiling,
}

/// A layer's inputs or outputs, for each size.
type Values = Vec<Vec<Box<dyn Part>>>;
/// The loss, and its targets for each size.
type LossAndTargets = Option<(Arc<ErasedLoss>, Vec<Packet>)>;

impl Bench<'_> {
    /// Measures one layer, and returns what it makes of its inputs.
    fn measure(
        &self,
        blueprint: &Blueprint,
        is_first: bool,
        inputs: Values,
        loss: LossAndTargets,
    ) -> Result<(LayerProfile, Values), ProfileError> {
        let name = blueprint.name.to_string();
        let context =
            MakeContext { seed: self.seed, device: &self.device, optimizer: &self.optimizer };
        let subject = || Subject {
            cell: (blueprint.make)(&context),
            name: name.clone(),
            device: self.device.clone(),
            is_first,
            inputs: inputs.iter().map(|parts| copied(parts)).collect(),
            loss: loss.clone(),
        };
        let mut others = Others::default();
        for rank in 1..=self.profiling.busy {
            let host = self.backend.host(rank).map_err(BuildError::from)?;
            others.start(host, subject());
        }
        let host = self.backend.host(0).map_err(BuildError::from)?;
        let (mut subject, profiling, rate) = (subject(), self.profiling.clone(), self.rate.clone());
        let measured = start(host, move || {
            let mut measured = subject.measure(&profiling, &rate)?;
            drop(others);
            if let Some(live_bytes) = &profiling.live_bytes {
                for (index, measurement) in measured.0.measurements.iter_mut().enumerate() {
                    measurement.activation_bytes = Some(subject.kept(index, &**live_bytes)?);
                }
            }
            Ok(measured)
        });
        match measured.finish() {
            Some(Ok(measured)) => Ok(measured),
            Some(Err(source)) => Err(ProfileError::Layer { layer: name, source }),
            None => Err(ProfileError::Panicked { layer: name }),
        }
    }
}

/// Work on a thread of its own.
struct Started<R> {
    thread: std::thread::JoinHandle<()>,
    result: mpsc::Receiver<R>,
}

fn start<R: Send + 'static>(
    host: Box<dyn Host>,
    work: impl FnOnce() -> R + Send + 'static,
) -> Started<R> {
    let (sender, result) = mpsc::channel();
    let worker = Box::new(move || {
        // Whoever waits for it has gone only if the caller panicked.
        let _ = sender.send(work());
    });
    Started { thread: std::thread::spawn(move || host.run(worker)), result }
}

impl<R> Started<R> {
    /// Waits for the result; there is none after a panic.
    fn finish(self) -> Option<R> {
        let result = self.result.recv().ok();
        self.thread.join().ok()?;
        result
    }
}

/// Threads that run the same layer meanwhile; they end when this is dropped.
#[derive(Default)]
struct Others {
    stop: Arc<AtomicBool>,
    threads: Vec<Started<()>>,
}

impl Others {
    fn start(&mut self, host: Box<dyn Host>, mut subject: Subject) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(start(host, move || {
            let largest = subject.inputs.len() - 1;
            while !stop.load(Ordering::Relaxed) && subject.run(largest, Phase::Train).is_ok() {}
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

/// A layer under measurement.
struct Subject {
    cell: Box<dyn Cell>,
    name: String,
    device: Device,
    is_first: bool,
    inputs: Values,
    loss: LossAndTargets,
}

/// One forward and one backward.
struct Run {
    forward: f64,
    backward: f64,
    outputs: Vec<Box<dyn Part>>,
}

impl Subject {
    fn measure(
        &mut self,
        profiling: &Profiling,
        rate: &ModuleLearningRate,
    ) -> Result<(LayerProfile, Values), StageError> {
        let mut measurements = Vec::with_capacity(self.inputs.len());
        let mut outputs = Vec::with_capacity(self.inputs.len());
        for (index, &samples) in profiling.sizes.iter().enumerate() {
            for _ in 0..profiling.warm_up {
                self.run(index, Phase::Train)?;
            }
            let (mut forward, mut backward, mut recompute) = (Vec::new(), Vec::new(), Vec::new());
            let mut made = Vec::new();
            for _ in 0..profiling.runs {
                let run = self.run(index, Phase::Train)?;
                forward.push(run.forward);
                backward.push(run.backward);
                recompute.push(self.run(index, Phase::Recompute)?.forward);
                made = run.outputs;
            }
            measurements.push(Measurement {
                samples,
                forward: time(forward),
                recompute: time(recompute),
                backward: time(backward),
                input_bytes: bytes(&self.inputs[index]),
                output_bytes: bytes(&made),
                activation_bytes: None,
            });
            outputs.push(made);
        }
        let largest = self.inputs.len() - 1;
        let (mut update, mut optimizer_bytes) = (Vec::new(), 0);
        for _ in 0..profiling.runs {
            self.run(largest, Phase::Train)?;
            let start = Instant::now();
            self.cell.stage_update(rate, 1.0)?;
            self.sync()?;
            update.push(start.elapsed().as_secs_f64());
            optimizer_bytes = self.cell.staged_state_bytes();
            self.cell.abandon();
        }
        self.run(largest, Phase::Train)?;
        let of_host = |data: std::collections::BTreeMap<_, burn::tensor::TensorData>| {
            data.values().map(|data| data.as_bytes().len() as u64).sum()
        };
        let layer = LayerProfile {
            name: self.name.clone(),
            parameter_bytes: of_host(self.cell.parameters()),
            gradient_bytes: of_host(self.cell.take_gradients(1.0)),
            optimizer_bytes,
            update: time(update),
            measurements,
        };
        Ok((layer, outputs))
    }

    /// Runs the layer once, and the loss behind it if it is the last.
    fn run(&mut self, index: usize, phase: Phase) -> Result<Run, StageError> {
        let start = Instant::now();
        let (outputs, tape) = self.forward(index, phase)?;
        let loss = match &self.loss {
            Some((loss, targets)) => {
                let target = targets[index].clone().settle(&self.device);
                Some(LossTape::record(&**loss, copied(&outputs), target)?.0)
            }
            None => None,
        };
        self.sync()?;
        let forward = start.elapsed().as_secs_f64();

        let start = Instant::now();
        let gradients = match loss {
            Some(tape) => tape.backward(),
            // Any values will do for time: the outputs have the right shapes.
            None => copied(&outputs).into_iter().map(Some).collect(),
        };
        self.cell.backward(tape, gradients)?;
        self.sync()?;
        Ok(Run { forward, backward: start.elapsed().as_secs_f64(), outputs })
    }

    /// The bytes that are kept between forward and backward, the input included.
    fn kept(&mut self, index: usize, live_bytes: &LiveBytes) -> Result<u64, StageError> {
        self.sync()?;
        let before = live_bytes();
        let (outputs, tape) = self.forward(index, Phase::Train)?;
        // The next layer's input isn't this one's to count.
        drop(outputs);
        self.sync()?;
        let kept = live_bytes().saturating_sub(before);
        drop(tape);
        Ok(kept.saturating_add(bytes(&self.inputs[index])))
    }

    fn forward(
        &mut self,
        index: usize,
        phase: Phase,
    ) -> Result<(Vec<Box<dyn Part>>, Tape), StageError> {
        let inputs = copied(&self.inputs[index]);
        let samples = 0..inputs.first().and_then(|p| p.shape().first().copied()).unwrap_or(0);
        let mut context = Context { phase, step: 0, micro_batch: 0, samples, layer: &self.name };
        let mode = Forward::Taped { input_gradient: !self.is_first };
        let (outputs, tape) = self.cell.forward(inputs, &mut context, mode)?;
        let tape = tape.ok_or_else(|| StageError::Order {
            layer: self.name.clone(),
            problem: "its forward left nothing for a backward",
        })?;
        Ok((outputs, tape))
    }

    fn sync(&self) -> Result<(), StageError> {
        self.device.sync().map_err(|error| {
            StageError::Backend(crate::BackendError {
                backend: format!("{:?}", self.device),
                reason: error.to_string(),
            })
        })
    }
}

fn copied(parts: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    parts.iter().map(|part| part.clone_box()).collect()
}

fn bytes(parts: &[Box<dyn Part>]) -> u64 {
    parts.iter().map(|part| part.bytes()).sum()
}

/// Median and distance of the quartiles.
fn time(mut seconds: Vec<f64>) -> Time {
    seconds.sort_by(f64::total_cmp);
    let at = |part: usize| seconds[(seconds.len() - 1) * part / 4];
    Time { median: at(2), spread: at(3) - at(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_medians_with_quartiles() {
        assert_eq!(time(vec![3.0]), Time::exactly(3.0));
        let found = time(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((found.median, found.spread), (3.0, 2.0));
    }
}
