//! A built pipeline: steps, evaluations, predictions.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::tensor::{Device, TensorData};
use stovepipe_partition::Partition;
use stovepipe_runtime::{Agreement, StepError, StepReport, Workers};
use stovepipe_schedule::{Mode, Program};

use crate::autodiff::tape::free_abandoned;
use crate::error::build::BuildError;
use crate::error::stage::StageError;
use crate::error::train::TrainError;
use crate::loss::NoLoss;
use crate::loss::scaling::Scaler;
use crate::model::ties::Tie;
use crate::pipeline::outcomes::{Accumulation, Evaluation, Gradients, Step};
use crate::pipeline::planner::Planner;
use crate::pipeline::summary::{SharedDevice, StageSummary};
use crate::stage::batch::{Batch, Task, Values};
use crate::stage::burn_stage::{BurnStage, StageOutput};
use crate::stage::report::{
    Report, added_by_layers, mean, metrics_of, norm_of, sum_and_weight_of, without_gradient,
};
use crate::value::boundary::{Boundary, from_parts, into_packet};
use crate::value::packet::Packet;
use crate::value::side::{SideKind, SideValues, give};

pub(crate) mod agreement;
pub(crate) mod assemble;
pub(crate) mod builder;
pub(crate) mod checks;
pub(crate) mod layer_costs;
pub(crate) mod optimizer_trial;
pub(crate) mod outcomes;
pub(crate) mod planner;
pub(crate) mod precision;
pub(crate) mod processes;
pub(crate) mod settings;
pub(crate) mod spec;
pub(crate) mod summary;

/// A model cut into stages, held by the workers of its ranks, ready to train.
///
/// `I` is the model's input, `O` its output, `T` the target that its loss takes. The first axis
/// of every tensor among them is the batch axis.
///
/// [`Pipeline::builder`] starts to configure one. Dropping it ends its threads.
pub struct Pipeline<I = NoLoss, O = NoLoss, T = NoLoss> {
    pub(crate) workers: Workers<BurnStage>,
    /// The number of this process.
    pub(crate) process: usize,
    /// The facts that processes must agree on, whatever they do.
    pub(crate) agreement: Agreement,
    pub(crate) planner: Planner,
    /// The programs made so far, by whether they train and by the number of micro-batches.
    pub(crate) programs: HashMap<(bool, usize), Arc<Program>>,
    pub(crate) rates: ModuleLrScheduler,
    /// The number of successful steps and accumulations.
    pub(crate) updates: u64,
    /// The weight of what was accumulated since the last update.
    pub(crate) carried_weight: f64,
    pub(crate) scaler: Option<Scaler>,
    pub(crate) metric_names: Vec<String>,
    /// The paths of the parameters that are to be trained.
    pub(crate) trained: Vec<String>,
    pub(crate) ties: Arc<[Tie]>,
    /// The side inputs of the next call.
    pub(crate) side: SideValues,
    pub(crate) partition: Partition,
    pub(crate) summaries: Vec<StageSummary>,
    pub(crate) shared_devices: Vec<SharedDevice>,
    pub(crate) types: PhantomData<fn(I, T) -> O>,
}

impl<I: Boundary, O: Boundary, T: Boundary> Pipeline<I, O, T> {
    /// Trains on one mini-batch: all micro-batches see the same parameters, and one update
    /// follows.
    ///
    /// The first axis of every tensor is the batch axis. If an error comes back, nothing is
    /// updated and the learning-rate scheduler doesn't advance. The exception is an error which
    /// says that an update failed half-way.
    ///
    /// # Errors
    ///
    /// [`TrainError`].
    pub fn step(&mut self, input: I, target: T) -> Result<Step, TrainError> {
        let mut rates = self.rates.clone();
        let rate = rates.step();
        let learning_rate = rate.base();
        let batch = self.batch(Task::Train(rate), input, Some(into_packet(target)))?;
        let micro_batches = batch.inputs.len();
        let loss_scale = batch.scale;
        let report = self.run(Mode::Training, batch)?;
        let reports = Report::decode_all(&report.reports)?;
        let (sum, weight) = sum_and_weight_of(&reports);
        let total = (self.carried_weight + weight) * loss_scale;
        let gradient_norm = norm_of(&reports, total);
        let overflowed = self.rescale(gradient_norm);
        if !overflowed {
            self.rates = rates;
            self.updates += 1;
            self.carried_weight = 0.0;
            if let Some(scaler) = &mut self.scaler {
                scaler.updated();
            }
        }
        Ok(Step {
            loss: mean(sum, weight),
            weight,
            added_loss: mean(added_by_layers(&reports), weight),
            metrics: metrics_of(&reports, &self.metric_names),
            gradient_norm,
            without_gradient: without_gradient(&reports, &self.ties),
            learning_rate,
            loss_scale,
            overflowed,
            micro_batches,
            timeline: report.timeline,
        })
    }

    /// Computes the gradients of one mini-batch and keeps them for the next
    /// [`step`](Self::step).
    ///
    /// That step updates with the mean over its own mini-batch and all those accumulated since
    /// the last update, each sample counted once. If an error comes back, what was accumulated
    /// before is kept.
    ///
    /// # Errors
    ///
    /// [`TrainError`].
    pub fn accumulate(&mut self, input: I, target: T) -> Result<Accumulation, TrainError> {
        let batch = self.batch(Task::Accumulate, input, Some(into_packet(target)))?;
        let report = self.run(Mode::Training, batch)?;
        let reports = Report::decode_all(&report.reports)?;
        let (sum, weight) = sum_and_weight_of(&reports);
        let overflowed = self.rescale(norm_of(&reports, 1.0));
        if !overflowed {
            self.updates += 1;
            self.carried_weight += weight;
        }
        Ok(Accumulation { loss: mean(sum, weight), weight, overflowed, timeline: report.timeline })
    }

    /// Adapts the loss scale where the step overflowed, and returns whether it did.
    ///
    /// The stages have decided by the same norm.
    fn rescale(&mut self, norm: Option<f64>) -> bool {
        let overflowed = norm.is_some_and(|norm| !norm.is_finite());
        match &mut self.scaler {
            Some(scaler) if overflowed => {
                scaler.overflowed();
                true
            }
            _ => false,
        }
    }

    /// Computes the loss of one mini-batch and its gradients, without an update.
    ///
    /// The gradients are neither accumulated nor clipped.
    ///
    /// # Errors
    ///
    /// [`TrainError`].
    pub fn gradients(&mut self, input: I, target: T) -> Result<Gradients, TrainError> {
        let batch = self.batch(Task::Gradients, input, Some(into_packet(target)))?;
        let report = self.run(Mode::Training, batch)?;
        let reports = Report::decode_all(&report.reports)?;
        let (sum, weight) = sum_and_weight_of(&reports);
        let overflowed = self.rescale(norm_of(&reports, 1.0));
        let gradients = report.outputs.into_iter().flat_map(|output| output.gradients).collect();
        Ok(Gradients { loss: mean(sum, weight), gradients, overflowed })
    }

    /// Computes the loss of one mini-batch with evaluation behaviour: no backward, no update.
    ///
    /// # Errors
    ///
    /// [`TrainError`].
    pub fn evaluate(&mut self, input: I, target: T) -> Result<Evaluation, TrainError> {
        let batch = self.batch(Task::Evaluate, input, Some(into_packet(target)))?;
        let report = self.run(Mode::ForwardOnly, batch)?;
        let reports = Report::decode_all(&report.reports)?;
        let (sum, weight) = sum_and_weight_of(&reports);
        if weight == 0.0 {
            return Err(StageError::Weight { weight }.into());
        }
        Ok(Evaluation {
            loss: mean(sum, weight),
            weight,
            added_loss: added_by_layers(&reports) / weight,
            metrics: metrics_of(&reports, &self.metric_names),
            timeline: report.timeline,
        })
    }
}

impl<I: Boundary, O: Boundary, T> Pipeline<I, O, T> {
    /// Computes the model's output for one mini-batch, with evaluation behaviour.
    ///
    /// The output is on the last stage's device or, where ranks are processes, in the host
    /// memory of each process.
    ///
    /// # Errors
    ///
    /// [`TrainError`].
    pub fn predict(&mut self, input: I) -> Result<O, TrainError> {
        let batch = self.batch(Task::Predict, input, None)?;
        let mut report = self.run(Mode::ForwardOnly, batch)?;
        let predictions = report.outputs.pop().map(|output| output.predictions).unwrap_or_default();
        let joined = self.share(Packet::concat(predictions))?.ok_or(TrainError::Join)?;
        Ok(from_parts(joined.into_values())?)
    }

    /// Gives the next step, evaluation or prediction a value besides its input.
    ///
    /// Any layer can ask for it by this name: see
    /// [`LayerContext::side_input`](crate::LayerContext::side_input). Its first axis is the
    /// batch axis, along which it is cut like the input. What has no batch axis is given with
    /// [`side_constant`](Self::side_constant).
    ///
    /// Call it before each of them: `pipeline.side_input("mask", mask).step(input, target)?`.
    pub fn side_input(&mut self, name: impl Into<String>, value: impl Boundary) -> &mut Self {
        give(&mut self.side, SideKind::PerSample, name, value);
        self
    }

    /// Gives the next step, evaluation or prediction a value that is the same for all samples,
    /// such as a table or a causal mask.
    ///
    /// It is whole for every micro-batch, whatever its shape. Layers ask for it with
    /// [`LayerContext::side_constant`](crate::LayerContext::side_constant).
    pub fn side_constant(&mut self, name: impl Into<String>, value: impl Boundary) -> &mut Self {
        give(&mut self.side, SideKind::Constant, name, value);
        self
    }

    /// Copies the parameters of all stages of this process to the host.
    ///
    /// They go by their paths in the model, like `blocks.3.up.weight`.
    ///
    /// # Errors
    ///
    /// [`StepError`] if a worker is gone, or an update failed half-way, so that some parameters
    /// are of one step and some of another.
    pub fn parameters(&mut self) -> Result<BTreeMap<String, TensorData>, StepError> {
        self.workers.check_usable()?;
        let mut parameters = BTreeMap::new();
        for StageSummary { stage, .. } in &self.summaries {
            if self.workers.holds(*stage) {
                parameters.extend(self.workers.visit(*stage, |stage| stage.parameters())?);
            }
        }
        Ok(parameters)
    }

    /// Waits until every device of this process has done what is queued on it, such as the last
    /// step's update.
    ///
    /// Steps need no waiting between them. Measuring them does, on devices that work while the
    /// next step is prepared.
    ///
    /// # Errors
    ///
    /// [`TrainError`] if a device reports a failure or a worker is gone.
    pub fn synchronize(&mut self) -> Result<(), TrainError> {
        for StageSummary { stage, .. } in &self.summaries {
            if self.workers.holds(*stage) {
                self.workers.visit(*stage, |stage| stage.synchronize())??;
            }
        }
        Ok(())
    }

    /// Returns the stages: which layers each holds, and where.
    #[must_use]
    pub fn stages(&self) -> &[StageSummary] {
        &self.summaries
    }

    /// Returns the devices that several ranks of this process share, as they do where there are
    /// fewer devices than ranks.
    ///
    /// Ranks wait for each other on such a device, which saves no time. Processors on which
    /// ranks have threads of their own aren't listed. Where ranks are processes, none are.
    #[must_use]
    pub fn shared_devices(&self) -> &[SharedDevice] {
        &self.shared_devices
    }

    /// Returns the partition: the layers of each stage.
    #[must_use]
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns the program of a training step on a mini-batch of `samples` samples, to print or
    /// simulate.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the schedule or the policy refuses that many micro-batches, or
    /// `samples` is 0.
    pub fn program(&mut self, samples: usize) -> Result<Arc<Program>, BuildError> {
        let micro_batches = self.planner.shape.micro_batches.min(samples);
        self.cached_program(Mode::Training, micro_batches)
    }

    /// Returns the program for so many micro-batches, made when it is first needed.
    fn cached_program(
        &mut self,
        mode: Mode,
        micro_batches: usize,
    ) -> Result<Arc<Program>, BuildError> {
        let key = (mode == Mode::Training, micro_batches);
        if let Some(program) = self.programs.get(&key) {
            return Ok(Arc::clone(program));
        }
        let program = Arc::new(self.planner.program(mode, micro_batches)?);
        self.programs.insert(key, Arc::clone(&program));
        Ok(program)
    }

    /// Cuts a mini-batch into micro-batches.
    fn batch(
        &mut self,
        task: Task,
        input: I,
        target: Option<Packet>,
    ) -> Result<Arc<Batch>, TrainError> {
        let values =
            Values { input: into_packet(input), target, side: std::mem::take(&mut self.side) };
        let scale = self.scaler.map_or(1.0, |scaler| scaler.scale);
        let agreement = self.agreement_on_call(&task, &values);
        let micro_batches = self.planner.shape.micro_batches;
        let batch = values.cut(micro_batches, task, self.updates, scale)?.with_agreement(agreement);
        Ok(Arc::new(batch))
    }

    /// Runs one step.
    fn run(
        &mut self,
        mode: Mode,
        batch: Arc<Batch>,
    ) -> Result<StepReport<StageOutput>, TrainError> {
        let program = self.cached_program(mode, batch.inputs.len())?;
        let report = self.workers.step(&program, batch);
        if report.is_err() {
            // By now no rank holds anything of the step.
            free_abandoned(&Device::flex());
        }
        Ok(report?)
    }
}
