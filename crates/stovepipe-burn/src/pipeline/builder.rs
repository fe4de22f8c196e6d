//! The configuration of a pipeline.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::FloatDType;
use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_partition::{Explicit, Partitioner};
use stovepipe_runtime::{Agreement, RankSetup, Workers};
use stovepipe_schedule::{Rank, Schedule};
use stovepipe_transport::Transport;
use stovepipe_tune::{Choice, Configuration};

use crate::backend::Backend;
use crate::error::build::BuildError;
use crate::loss::erasure::{ErasedLoss, erase};
use crate::loss::scaling::LossScaling;
use crate::loss::{Loss, NoLoss};
use crate::model::sequential::Sequential;
use crate::parameters::averaging::Clipping;
use crate::parameters::generator::LentGenerator;
use crate::pipeline::Pipeline;
use crate::pipeline::agreement::agreement_on_model;
use crate::pipeline::layer_costs::LayerCosts;
use crate::pipeline::optimizer_trial::trained_paths;
use crate::pipeline::settings::Settings;
use crate::pipeline::summary::SharedDevice;
use crate::value::boundary::Boundary;
use crate::value::packet::Packet;
use crate::value::side::SideValues;

/// Configures a [`Pipeline`].
///
/// A backend is required; to train, so are a loss, an optimizer and a learning rate. The
/// defaults:
///
/// - one stage;
/// - the schedule GPipe;
/// - four micro-batches for each rank;
/// - no recomputation;
/// - a partition that balances parameters.
pub struct Builder<I, O, T = NoLoss> {
    pub(crate) model: Sequential<I, O>,
    pub(crate) settings: Settings,
    pub(crate) loss: Option<Arc<ErasedLoss>>,
    target: PhantomData<fn(T)>,
}

impl Pipeline {
    /// Starts to configure a pipeline for `model`.
    #[must_use]
    pub fn builder<I: Boundary, O: Boundary>(model: Sequential<I, O>) -> Builder<I, O> {
        Builder::new(model)
    }
}

impl<I: Boundary, O: Boundary> Builder<I, O> {
    fn new(model: Sequential<I, O>) -> Self {
        Self { model, settings: Settings::default(), loss: None, target: PhantomData }
    }
}

impl<I: Boundary, O: Boundary, T> Builder<I, O, T> {
    /// Sets the backend: where the stages run.
    #[must_use]
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.settings.backend = Some(Arc::new(backend));
        self
    }

    /// Spreads the pipeline over processes, as many as it has ranks.
    ///
    /// This process runs the rank that `transport`'s endpoint has. By default all ranks are
    /// threads of this process.
    ///
    /// Every process builds the same pipeline and makes the same calls with the same
    /// mini-batches. Before each call, processes compare what they are about to do, and all
    /// refuse if one differs. A process makes only the layers of its own stages.
    ///
    /// - All processes know losses, weights, metrics, norms and predictions.
    /// - Only the process of a rank knows that rank's [parameters](Pipeline::parameters),
    ///   [gradients](Pipeline::gradients) and spans of a timeline. [`Pipeline::gather`] and
    ///   [`Pipeline::gather_timeline`] put them together.
    #[must_use]
    pub fn transport(mut self, transport: impl Transport<Packet> + 'static) -> Self {
        self.settings.transport = Some(Arc::new(transport));
        self
    }

    /// Sets the number of stages that the model is cut into, in all.
    #[must_use]
    pub fn stages(mut self, stages: usize) -> Self {
        self.settings.stages = stages;
        self
    }

    /// Sets the number of stages that share a rank. It must divide the number of stages.
    ///
    /// By default it is the number that the schedule is made for: 2 for schedules that
    /// interleave (if it divides the number of stages), otherwise 1.
    #[must_use]
    pub fn stages_per_rank(mut self, stages_per_rank: usize) -> Self {
        self.settings.stages_per_rank = Some(stages_per_rank);
        self
    }

    /// Sets the number of micro-batches that a mini-batch is cut into. A mini-batch of fewer
    /// samples makes fewer.
    #[must_use]
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.settings.micro_batches = Some(micro_batches);
        self
    }

    /// Sets the schedule: in which order the work is done.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.settings.schedule = Box::new(schedule);
        self
    }

    /// Sets the checkpoint policy: which activations are kept and which are recomputed.
    #[must_use]
    pub fn checkpoint(mut self, policy: impl CheckpointPolicy + 'static) -> Self {
        self.settings.policy = Box::new(policy);
        self
    }

    /// Sets the partitioner, which cuts the layers into stages.
    #[must_use]
    pub fn partitioner(mut self, partitioner: impl Partitioner + 'static) -> Self {
        self.settings.partitioner = Box::new(partitioner);
        self
    }

    /// Sets the costs that the partitioner balances.
    #[must_use]
    pub fn layer_costs(mut self, costs: impl Into<LayerCosts>) -> Self {
        self.settings.costs = costs.into();
        self
    }

    /// Applies a tuner's choice: sets stages, stages per rank, micro-batches, schedule,
    /// checkpoint policy and partition.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use burn::optim::SgdConfig;
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_burn::{MeanSquaredError, Pipeline, Profiling, Sequential};
    /// use stovepipe_tune::{Cluster, Tuner};
    /// # use stovepipe_burn::{Backend, BackendError};
    /// # struct Flex;
    /// # impl Backend for Flex {
    /// #     fn name(&self) -> &str { "flex" }
    /// #     fn devices(&self) -> Result<Vec<Device>, BackendError> { Ok(vec![Device::flex()]) }
    /// # }
    ///
    /// let model = Sequential::<Tensor<2>>::new()
    ///     .push_module("up", |d| LinearConfig::new(4, 8).init(d), |m, x| m.forward(x))
    ///     .push_module("down", |d| LinearConfig::new(8, 1).init(d), |m, x| m.forward(x));
    /// let builder = Pipeline::builder(model)
    ///     .backend(Flex)
    ///     .optimizer(SgdConfig::new().init())
    ///     .learning_rate(0.1)
    ///     .loss(MeanSquaredError);
    ///
    /// let device = Device::flex();
    /// let (x, y) = (Tensor::<2>::ones([8, 4], &device), Tensor::<2>::ones([8, 1], &device));
    /// let profile = builder.profile(&Profiling::new([1, 2, 4, 8]), x.clone(), y.clone())?;
    /// let report = Tuner::new(&profile, &Cluster::new(2)).batch(8).tune()?;
    /// println!("{} in {} s", report.best().configuration, report.best().seconds);
    /// let mut pipeline = builder.tune(report.best()).build()?;
    /// pipeline.step(x, y)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tune(self, choice: &Choice) -> Self {
        let Configuration { schedule, policy, ranks, stages_per_rank, micro_batches, .. } =
            &choice.configuration;
        self.stages(ranks * stages_per_rank)
            .stages_per_rank(*stages_per_rank)
            .micro_batches(*micro_batches)
            .schedule(Arc::clone(schedule))
            .checkpoint(Arc::clone(policy))
            .partitioner(Explicit::new(choice.partition.clone()))
    }

    /// Sets the optimizer, any of Burn's. Parameter groups go by paths in the whole model.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Into<ModuleOptimizer>) -> Self {
        self.settings.optimizer = Some(optimizer.into());
        self
    }

    /// Sets the learning rate: a constant, or any of Burn's schedulers. It advances with every
    /// successful step.
    #[must_use]
    pub fn learning_rate(mut self, rate: impl LrScheduler + 'static) -> Self {
        self.settings.rates = Some(ModuleLrScheduler::new(rate));
        self
    }

    /// Sets learning rates by parameter group.
    #[must_use]
    pub fn learning_rates(mut self, rates: ModuleLrScheduler) -> Self {
        self.settings.rates = Some(rates);
        self
    }

    /// Clips gradients that grow too large, over all stages.
    #[must_use]
    pub fn clip_gradients(mut self, clipping: Clipping) -> Self {
        self.settings.clipping = Some(clipping);
        self
    }

    /// Sets the type of float that layers compute in, for mixed precision.
    ///
    /// Parameters, their gradients and the optimizer's state stay in the type that they were
    /// made in. A layer's parameters are cast once for each update. What it takes and pops is cast
    /// in each forward. What it returns and stashes travels in the type that it has there: in this
    /// one, unless the layer made it another. Losses, metrics and predictions are made of the last
    /// outputs, of which those of 16 bits are cast to 32.
    ///
    /// [`full_precision`](Self::full_precision) and
    /// [`Layer::full_precision`](crate::Layer::full_precision) exempt a layer.
    ///
    /// In a type of 16 bits with few of them for the exponent ([`FloatDType::F16`]) gradients
    /// vanish without [`loss_scaling`](Self::loss_scaling).
    #[must_use]
    pub fn compute_dtype(mut self, dtype: FloatDType) -> Self {
        self.settings.compute_dtype = Some(dtype);
        self
    }

    /// Lets the layer of this name compute in 32 bits where others compute in the type of
    /// [`compute_dtype`](Self::compute_dtype).
    ///
    /// What it takes and pops is cast to 32 bits, and what it returns stays so. On a device whose
    /// own floats have 64 bits it computes in those.
    #[must_use]
    pub fn full_precision(mut self, layer: impl Into<String>) -> Self {
        self.settings.full_precision.push(layer.into());
        self
    }

    /// Scales the loss for the backward, so that gradients don't vanish in 16 bits.
    ///
    /// A step with a gradient that isn't finite overflows: no stage updates. Without loss
    /// scaling such an update is made, or refused where gradients are [clipped by
    /// norm](Clipping::Norm).
    #[must_use]
    pub fn loss_scaling(mut self, scaling: LossScaling) -> Self {
        self.settings.loss_scaling = Some(scaling);
        self
    }

    /// Looks for the first number that isn't finite, so that a step in which a NaN or an infinity
    /// appears fails with an error that names the layer, the micro-batch and the direction.
    ///
    /// Every output and every gradient is looked at, for which the device is waited for: use it to
    /// find a fault, not to train. With [loss scaling](Self::loss_scaling), gradients that are too
    /// large for their type are found as well.
    #[must_use]
    pub fn find_non_finite(mut self, find: bool) -> Self {
        self.settings.finds_non_finite = find;
        self
    }

    /// Sets the seed. The seeds of every layer's initialization and of the randomness of its
    /// forwards derive from it.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Computes each update next to the parameters and swaps it in once every stage has
    /// succeeded.
    ///
    /// So even a failure inside the update leaves everything as it was. This costs the memory
    /// of a second copy of parameters and optimizer state.
    #[must_use]
    pub fn atomic_updates(mut self, atomic_updates: bool) -> Self {
        self.settings.atomic_updates = atomic_updates;
        self
    }

    /// Lets the layer of this name be recomputed although it holds a module that draws random
    /// numbers or counts statistics.
    ///
    /// This is for modules that do nothing, such as a dropout of probability 0 inside Burn's
    /// attention.
    #[must_use]
    pub fn allow_unreplayable(mut self, layer: impl Into<String>) -> Self {
        self.settings.allowed.push(layer.into());
        self
    }

    /// Sets the loss, which is minimized. Metrics are added after it.
    #[must_use]
    pub fn loss<U: Boundary>(self, loss: impl Loss<O, U>) -> Builder<I, O, U> {
        let Self { model, mut settings, .. } = self;
        settings.metrics.clear();
        let loss = Some(Arc::from(erase::<O, U>("the loss".to_owned(), loss)));
        Builder { model, settings, loss, target: PhantomData }
    }

    /// Measures a number besides the loss, and reports it by steps and evaluations under this
    /// name.
    ///
    /// It is a sum and a weight like a [`Loss`], averaged over the mini-batch. It runs on the
    /// last stage for each micro-batch, and is read from the device once at the end.
    #[must_use]
    pub fn metric(mut self, name: impl Into<String>, metric: impl Loss<O, T>) -> Self
    where
        T: Boundary,
    {
        let name = name.into();
        let metric = erase::<O, T>(format!("the metric `{name}`"), metric);
        self.settings.metrics.push((name, metric));
        self
    }

    /// Cuts the model, initializes each stage on its device and starts the workers.
    ///
    /// Layers are initialized with Burn's generator on the processor, which is one for the whole
    /// process and whose state can't be put back. It is left as if a small tensor had been drawn
    /// and the generator seeded with that. So what is drawn afterwards depends on the caller's
    /// own seed, and not on the pipeline. The same holds for profiling and rehearsing.
    ///
    /// # Errors
    ///
    /// [`BuildError`].
    pub fn build(mut self) -> Result<Pipeline<I, O, T>, BuildError> {
        let _generator = LentGenerator::take();
        let transport = self.settings.transport.take();
        let mut spec = self.assemble()?;
        let ranks = spec.planner.shape.ranks;
        let process = transport.as_ref().map_or(0, |transport| transport.rank());
        let mut setup = |rank: Rank| -> Result<_, BuildError> {
            let stages = spec.stages(rank);
            Ok(RankSetup::new(stages, spec.settings.backend.rank_thread(rank.index())?))
        };
        let is_local = transport.is_none();
        let workers = match transport {
            Some(transport) if transport.ranks() != ranks => {
                return Err(BuildError::Processes { processes: transport.ranks(), ranks });
            }
            Some(transport) => Workers::join(setup(Rank::new(process))?, transport)?,
            None => Workers::start(Rank::first(ranks).map(setup).collect::<Result<_, _>>()?)?,
        };
        // Devices that processes share aren't known here.
        let shared_devices = if is_local { spec.shared_devices(ranks) } else { Vec::new() };
        for SharedDevice { device, ranks } in &shared_devices {
            tracing::info!(device, ?ranks, "ranks share a device");
        }
        let agreement = if is_local { Agreement::new() } else { agreement_on_model(&spec) };
        Ok(Pipeline {
            workers,
            process,
            agreement,
            summaries: spec.summaries(),
            shared_devices,
            planner: spec.planner,
            programs: HashMap::new(),
            rates: spec.rates.unwrap_or_else(|| ModuleLrScheduler::new(0.0)),
            updates: 0,
            carried_weight: 0.0,
            scaler: spec.scaler,
            metric_names: spec.metric_names,
            trained: trained_paths(&spec.layers, &spec.layer_facts),
            ties: spec.settings.ties,
            side: SideValues::new(),
            partition: spec.partition,
            types: PhantomData,
        })
    }
}
