//! One stage at work: its layers in order, segment by segment where activations are dropped, and on
//! the last stage the loss.

use crate::layer::statistics::commit_observations;
use crate::stage::tied_gradients::tied_squared_norm;
use crate::stage::tied_gradients::tied_sums;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use stovepipe_runtime::{Agreement, Begin, StageCompute};
use stovepipe_schedule::{MicroBatch, StageRetention};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::loss_tape::LossTape;
use crate::autodiff::tape::{Backwarded, Forward, Forwarded, Tape, free_abandoned};
use crate::backend::Backend;
use crate::error::StageError;
use crate::layer::context::{ForwardPlace, Side, SkipValues};
use crate::layer::context::{LayerContext, Pass};
use crate::layer::statistics::Observation;
use crate::loss::LossSum;
use crate::loss::Weight;
use crate::loss::erasure::{ErasedLoss, wide};
use crate::model::ties::Tie;
use crate::parameters::averaging::{Averaging, Clipping};
use crate::stage::batch::{Batch, Task};
use crate::stage::report::{Report, mean_of, norm_of};
use crate::stage::routes::{Routes, SkipStore, pack, unpack};
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};

/// What a stage hands back.
#[derive(Default)]
pub(crate) struct StageOutput {
    pub(crate) predictions: Vec<Packet>,
    pub(crate) gradients: BTreeMap<String, TensorData>,
}

/// What a stage holds during a step.
struct StageStep {
    batch: Arc<Batch>,
    /// Tapes by micro-batch and layer.
    tapes: HashMap<(usize, usize), Tape>,
    /// Inputs of dropped segments, by micro-batch and first layer.
    kept_inputs: HashMap<(usize, usize), Vec<Box<dyn Part>>>,
    loss_tapes: HashMap<usize, LossTape>,
    /// Values on skip connections by micro-batch and name, from when they are stashed or arrive until the
    /// backward of the layer that pops them.
    skipped: SkipStore,
    /// Their gradients, from that layer until they are sent or the layer that stashed them runs.
    skip_gradients: SkipStore,
    /// What layers add to the loss, by layer and micro-batch.
    added: BTreeMap<(usize, usize), Tensor<1>>,
    /// What batch normalizations saw, by layer and micro-batch.
    observed: BTreeMap<(usize, usize), Vec<Observation>>,
    /// By metric and micro-batch.
    metrics: BTreeMap<(usize, usize), (Tensor<1>, Weight)>,
    /// Sum and weight of each micro-batch, on the last stage.
    losses: BTreeMap<usize, (Tensor<1>, Weight)>,
    predictions: BTreeMap<usize, Packet>,
    /// How gradients are averaged, once that is known.
    averaging: Averaging,
    /// Whether they aren't finite and are to be forgotten.
    overflowed: bool,
    gradients: BTreeMap<String, TensorData>,
}

pub(crate) struct BurnStage {
    pub(crate) layers: Vec<Box<dyn ErasedLayer>>,
    pub(crate) device: Device,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) loss: Option<Arc<ErasedLoss>>,
    settings: StageSettings,
    routes: Routes,
    /// Its first layer's number in the model.
    first_layer: usize,
    /// The weight of the steps since the last update, and the scale of their gradients.
    carried_weight: f64,
    carried_scale: f64,
    current: Option<StageStep>,
}

/// What the stages of a pipeline have in common.
#[derive(Clone)]
pub(crate) struct StageSettings {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) atomic_updates: bool,
    pub(crate) seed: u64,
    pub(crate) clipping: Option<Clipping>,
    /// Whether gradients that aren't finite make a step that is skipped instead of an error.
    pub(crate) forgets_overflows: bool,
    pub(crate) metrics: Arc<[Box<ErasedLoss>]>,
    pub(crate) ties: Arc<[Tie]>,
}

impl StageSettings {
    /// The paths of all uses of tied parameters, or of all but the first.
    fn tied_paths(&self, all: bool) -> HashSet<String> {
        let uses = |tie: &Tie| tie[usize::from(!all).min(tie.len())..].to_vec();
        self.ties.iter().flat_map(uses).map(|tied| tied.path).collect()
    }
}

impl BurnStage {
    /// `place` says whether it is the first and whether it is the last.
    pub(crate) fn new(
        layers: Vec<Box<dyn ErasedLayer>>,
        device: Device,
        place: (bool, bool),
        loss: Option<Arc<ErasedLoss>>,
        routes: Routes,
        first_layer: usize,
        settings: StageSettings,
    ) -> Self {
        let (is_first, is_last) = place;
        Self {
            layers,
            device,
            is_first,
            is_last,
            loss,
            settings,
            routes,
            first_layer,
            carried_weight: 0.0,
            carried_scale: 1.0,
            current: None,
        }
    }

    pub(crate) fn parameters(&self) -> BTreeMap<String, TensorData> {
        let copies = self.settings.tied_paths(false);
        let parameters = self.layers.iter().flat_map(|layer| layer.parameters());
        parameters.filter(|(path, _)| !copies.contains(path)).collect()
    }

    fn current(&mut self) -> Result<&mut StageStep, StageError> {
        let layer = self.layers.first().map(|l| l.name().to_owned()).unwrap_or_default();
        self.current.as_mut().ok_or(StageError::Order { layer, problem: "no step has begun" })
    }

    fn missing(&self, layer: usize) -> StageError {
        StageError::Order {
            layer: self.layers[layer].name().to_owned(),
            problem: "its activations for this micro-batch are gone or were never made",
        }
    }

    /// Runs layers `range` on `values`; with tapes or without.
    fn run_layers(
        &mut self,
        m: usize,
        range: Range<usize>,
        mut values: Vec<Box<dyn Part>>,
        pass: Pass,
        taped: bool,
    ) -> Result<Vec<Box<dyn Part>>, StageError> {
        for index in range {
            let is_model_input = self.is_first && index == 0;
            let mode = match pass {
                Pass::Evaluate => Forward::Evaluate,
                _ if taped => Forward::Taped { input_gradient: !is_model_input },
                _ => Forward::Untaped,
            };
            let seed = self.settings.seed;
            let batch = Arc::clone(&self.current()?.batch);
            let (updates, samples) = (batch.updates, batch.samples[m].clone());
            let (backend, device) = (Arc::clone(&self.settings.backend), self.device.clone());
            let layer = &self.layers[index];
            let name = layer.name().to_owned();
            let place = ForwardPlace { seed, updates, micro_batch: m };
            let receiver = Some((&*backend, &device));
            let side = Side { packets: batch.side.get(m), receiver };
            let mut context = LayerContext::new(pass, place, samples, &name).with_side(side);
            let pops = layer.pops().to_vec();
            for skip in pops {
                let key = (m, skip.clone());
                // Without a backward nobody needs it again.
                let value = match pass {
                    Pass::Evaluate => self.current()?.skipped.remove(&key),
                    _ => self.current()?.skipped.get(&key).cloned(),
                };
                let value = value.ok_or_else(|| self.missing(index))?;
                context.popped.insert(skip, value);
            }
            let layer = &mut self.layers[index];
            let Forwarded { outputs, tape, loss, stashed, observations } =
                layer.forward(values, &mut context, mode)?;
            let current = self.current()?;
            if pass == Pass::Train && !observations.is_empty() {
                current.observed.insert((index, m), observations);
            }
            if pass != Pass::Recompute {
                current.skipped.extend(stashed.into_iter().map(|(skip, v)| ((m, skip), v)));
            }
            if let Some(tape) = tape {
                current.tapes.insert((m, index), tape);
            }
            if let Some(loss) = loss.filter(|_| pass != Pass::Recompute) {
                current.added.insert((index, m), loss);
            }
            values = outputs;
        }
        Ok(values)
    }

    /// The loss of a micro-batch; with a tape if a backward follows.
    fn run_loss(
        &mut self,
        m: usize,
        outputs: Vec<Box<dyn Part>>,
        taped: bool,
    ) -> Result<(), StageError> {
        let loss = self.loss.clone().ok_or(StageError::NoTarget)?;
        let metrics = Arc::clone(&self.settings.metrics);
        let target = self.current()?.batch.targets.get(m).cloned().ok_or(StageError::NoTarget)?;
        let target = self.receive(target)?;
        let current = self.current()?;
        for (number, metric) in metrics.iter().enumerate() {
            let LossSum { sum, weight } = metric(wide(&outputs), target.clone())?;
            current.metrics.insert((number, m), (sum, weight));
        }
        let result = if taped {
            let (tape, result) = LossTape::record(&*loss, outputs, target)?;
            current.loss_tapes.insert(m, tape);
            result
        } else {
            loss(wide(&outputs), target)?
        };
        let sum = if taped { result.sum.inner() } else { result.sum };
        current.losses.insert(m, (sum, result.weight.inner()));
        Ok(())
    }

    /// Rebuilds the activations of a dropped segment from its kept input.
    fn rebuild(&mut self, m: usize, segment: Range<usize>) -> Result<(), StageError> {
        let inputs = self.current()?.kept_inputs.remove(&(m, segment.start));
        let inputs = inputs.ok_or_else(|| self.missing(segment.start))?;
        let ends_model = self.is_last && segment.end == self.layers.len();
        let outputs = self.run_layers(m, segment, inputs, Pass::Recompute, true)?;
        if ends_model { self.run_loss(m, outputs, true) } else { Ok(()) }
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
    fn tied_sums<'a>(&self, sums: &'a [Option<Vec<f32>>]) -> Vec<(usize, String, &'a [f32])> {
        let of_use =
            self.settings.ties.iter().zip(sums).flat_map(|(tie, sum)| tie.iter().map(move |_| sum));
        let of_use: Vec<_> = of_use.collect();
        let uses = self.tied_uses().into_iter();
        uses.filter_map(|(number, (layer, path))| {
            Some((layer, path, &**of_use[number as usize].as_ref()?))
        })
        .collect()
    }

    /// Moves current statistics by what the step saw.
    fn commit_observed(&mut self) -> Result<(), StageError> {
        let mut layers: BTreeMap<usize, Vec<Vec<Observation>>> = BTreeMap::new();
        for ((layer, _), seen) in std::mem::take(&mut self.current()?.observed) {
            layers.entry(layer).or_default().push(seen);
        }
        layers.into_values().for_each(commit_observations);
        Ok(())
    }

    fn flush(&self) -> Result<(), StageError> {
        Ok(self.settings.backend.flush(&self.device)?)
    }

    /// Waits until the device has done what this rank queued.
    pub(crate) fn synchronize(&self) -> Result<(), StageError> {
        Ok(self.settings.backend.synchronize(&self.device)?)
    }

    /// A value or a gradient on this stage's device.
    fn receive(&self, packet: Packet) -> Result<Packet, StageError> {
        Ok(self.settings.backend.receive(packet, &self.device)?)
    }

    fn receive_all(&self, packets: Vec<Packet>) -> Result<Vec<Packet>, StageError> {
        packets.into_iter().map(|packet| self.receive(packet)).collect()
    }

    /// Where the tape of `layer` is missing, rebuilds the segment that it belongs to.
    fn ensure_tape(
        &mut self,
        m: usize,
        layer: usize,
        retention: &StageRetention,
    ) -> Result<(), StageError> {
        if self.current()?.tapes.contains_key(&(m, layer)) {
            return Ok(());
        }
        let segment = retention.dropped().iter().find(|segment| segment.contains(&layer));
        let segment = segment.cloned().ok_or_else(|| self.missing(layer))?;
        self.rebuild(m, segment)
    }
}

impl StageCompute for BurnStage {
    type Value = Packet;
    type Input = Batch;
    type Output = StageOutput;
    type Error = StageError;

    fn agreement(batch: &Batch) -> Agreement {
        batch.agreement.clone()
    }

    fn begin(&mut self, begin: Begin<'_, Batch>) -> Result<(), StageError> {
        self.current = Some(StageStep {
            batch: Arc::clone(begin.input),
            tapes: HashMap::new(),
            kept_inputs: HashMap::new(),
            loss_tapes: HashMap::new(),
            skipped: HashMap::new(),
            skip_gradients: HashMap::new(),
            losses: BTreeMap::new(),
            added: BTreeMap::new(),
            observed: BTreeMap::new(),
            metrics: BTreeMap::new(),
            predictions: BTreeMap::new(),
            averaging: Averaging::mean(1.0),
            overflowed: false,
            gradients: BTreeMap::new(),
        });
        Ok(())
    }

    fn forward(
        &mut self,
        micro_batch: MicroBatch,
        inputs: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let m = micro_batch.index();
        let batch = Arc::clone(&self.current()?.batch);
        let inputs = self.receive_all(inputs)?;
        let input = if self.is_first {
            batch.inputs.get(m).cloned().map(|input| self.receive(input)).transpose()?
        } else {
            let routes = self.routes.incoming.clone();
            let chain = routes.len().saturating_sub(1);
            unpack(m, inputs, routes, chain, &mut self.current()?.skipped)
        };
        let mut values = input.ok_or_else(|| self.missing(0))?.into_values();
        let layers = self.layers.len();
        let trains = matches!(batch.task, Task::Train(_) | Task::Accumulate | Task::Gradients);
        if trains {
            let mut next = 0;
            for segment in retention.dropped().iter().cloned() {
                values = self.run_layers(m, next..segment.start, values, Pass::Train, true)?;
                self.current()?.kept_inputs.insert((m, segment.start), copied(&values));
                next = segment.end;
                values = self.run_layers(m, segment, values, Pass::Train, false)?;
            }
            if !retention.dropped().is_empty() {
                free_abandoned(&self.device);
            }
            // A last segment that was dropped makes its loss when it is rebuilt.
            let last_is_taped = next < layers;
            values = self.run_layers(m, next..layers, values, Pass::Train, true)?;
            if self.is_last && last_is_taped {
                self.run_loss(m, std::mem::take(&mut values), true)?;
            }
        } else {
            values = self.run_layers(m, 0..layers, values, Pass::Evaluate, false)?;
            if self.is_last {
                match batch.task {
                    Task::Predict => {
                        let output = Packet::of(wide(&std::mem::take(&mut values)));
                        self.current()?.predictions.insert(m, output);
                    }
                    _ => self.run_loss(m, std::mem::take(&mut values), false)?,
                }
            }
        }
        self.flush()?;
        let value = (!self.is_last).then(|| Packet::of(values));
        let routes = self.routes.outgoing.clone();
        Ok(pack(m, value, routes, 0, &mut self.current()?.skipped))
    }

    fn recompute(
        &mut self,
        micro_batch: MicroBatch,
        retention: &StageRetention,
    ) -> Result<(), StageError> {
        if let Some(segment) = retention.dropped().last().cloned() {
            self.rebuild(micro_batch.index(), segment)?;
        }
        self.flush()
    }

    fn backward(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let m = micro_batch.index();
        let last = self.layers.len() - 1;
        let scale = self.current()?.batch.scale;
        self.ensure_tape(m, last, retention)?;
        let mut flowing = if self.is_last {
            let tape = self.current()?.loss_tapes.remove(&m);
            tape.ok_or_else(|| self.missing(last))?.backward(scale)
        } else {
            let (gradients, routes) = (self.receive_all(gradients)?, self.routes.outgoing.clone());
            let gradient = unpack(m, gradients, routes, 0, &mut self.current()?.skip_gradients);
            gradient.ok_or_else(|| self.missing(last))?.into_gradients()
        };
        for layer in (0..=last).rev() {
            self.ensure_tape(m, layer, retention)?;
            let tape = self.current()?.tapes.remove(&(m, layer));
            let tape = tape.ok_or_else(|| self.missing(layer))?;
            let current = self.current()?;
            let mut stashed = SkipValues::new();
            for name in tape.stashed() {
                let gradient = current.skip_gradients.remove(&(m, name.clone()));
                stashed.extend(gradient.map(|gradient| (name.clone(), gradient)));
            }
            let Backwarded { inputs, popped } =
                self.layers[layer].backward(tape, flowing, stashed, scale)?;
            let current = self.current()?;
            for (name, gradient) in popped {
                current.skipped.remove(&(m, name.clone()));
                current.skip_gradients.insert((m, name), gradient);
            }
            flowing = inputs;
        }
        self.flush()?;
        let gradient = (!self.is_first).then(|| Packet::gradients(flowing));
        let routes = self.routes.incoming.clone();
        let chain = routes.len().saturating_sub(1);
        Ok(pack(m, gradient, routes, chain, &mut self.current()?.skip_gradients))
    }

    fn finish(&mut self) -> Result<Vec<u8>, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let task = &batch.task;
        let keeps = matches!(task, Task::Train(_) | Task::Accumulate);
        // Those that were carried over may have been made at another scale.
        let carried = keeps.then_some(batch.scale / self.carried_scale);
        for layer in &mut self.layers {
            layer.complete(carried);
        }
        let clips = matches!(self.settings.clipping, Some(Clipping::Norm(_)));
        let looks = self.settings.forgets_overflows && matches!(task, Task::Gradients);
        let squared_norms = if looks || keeps && (clips || self.settings.forgets_overflows) {
            // What isn't finite must not be kept for the next update either.
            let apart = match task {
                Task::Train(_) | Task::Gradients => self.settings.tied_paths(true),
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
        let report = Report {
            squared_norms,
            added: current.added.values().map(value).collect(),
            losses: current.losses.values().map(pair).collect(),
            metrics: current.metrics.values().map(pair).collect(),
            tied,
        };
        Ok(report.encode())
    }

    fn prepare(&mut self, reports: &[Vec<u8>]) -> Result<(), StageError> {
        let reports = Report::decode_all(reports)?;
        let (_, weight) = mean_of(&reports);
        let batch = Arc::clone(&self.current()?.batch);
        let updates = matches!(batch.task, Task::Train(_));
        let weight = if updates { self.carried_weight + weight } else { weight };
        // A mini-batch without weight is fine if others are added to it.
        if !(weight.is_finite() && (weight > 0.0 || matches!(batch.task, Task::Accumulate))) {
            return Err(StageError::Weight { weight });
        }
        let sums = tied_sums(&self.settings.ties, &reports);
        for (layer, path, sum) in self.tied_sums(&sums) {
            self.layers[layer].set_gradient(&path, sum);
        }
        // Of the sums: a mini-batch that is accumulated may weigh nothing.
        let norm = norm_of(&reports, tied_squared_norm(&sums), 1.0);
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

    fn commit(&mut self) -> Result<(), StageError> {
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
                (self.carried_weight, self.carried_scale) = (0.0, 1.0);
                self.commit_observed()?;
            }
            Task::Accumulate => {
                self.layers.iter_mut().for_each(|layer| layer.carry());
                self.carried_weight += averaging.weight;
                self.carried_scale = averaging.scale;
                self.commit_observed()?;
            }
            Task::Gradients => {
                let mut gradients = BTreeMap::new();
                for layer in &mut self.layers {
                    gradients.extend(layer.take_gradients(averaging));
                }
                let copies = self.settings.tied_paths(false);
                gradients.retain(|path, _| !copies.contains(path));
                self.current()?.gradients = gradients;
            }
            Task::Evaluate | Task::Predict => {}
        }
        self.flush()
    }

    fn abandon(&mut self) {
        self.current = None;
        for layer in &mut self.layers {
            layer.abandon();
        }
    }

    fn take_output(&mut self) -> StageOutput {
        match self.current.take() {
            Some(current) => StageOutput {
                predictions: current.predictions.into_values().collect(),
                gradients: current.gradients,
            },
            None => StageOutput::default(),
        }
    }
}
