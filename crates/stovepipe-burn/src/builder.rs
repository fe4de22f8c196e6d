//! Configuring a pipeline.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, FloatDType};
use stovepipe_checkpoint::{CheckpointPolicy, Never};
use stovepipe_partition::{Costs, Explicit, Minimax, Partitioner};
use stovepipe_runtime::{RankSetup, Workers};
use stovepipe_schedule::{GPipe, Mode, Rank, Schedule, Shape};
use stovepipe_transport::Transport;
use stovepipe_tune::{Choice, Configuration};

use crate::gradients::Clipping;
use crate::loss::{ErasedLoss, erase};
use crate::pipeline::{Planner, SharedDevice};
use crate::precision::{Scaler, supports};
use crate::processes::agreement_on_model;
use crate::replay::Unreplayable;
use crate::sequential::LayerFacts;
use crate::skips::{edges_of, skips_of};
use crate::spec::PipelineSpec;
use crate::stage::StageSettings;
use crate::ties::{Tie, ties_of};
use crate::{
    Backend, Boundary, BuildError, Loss, LossScaling, NoLoss, Packet, Pipeline, Sequential,
};

/// What the partitioner balances.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum LayerCosts {
    /// The number of parameters, which follows the time of layers that are matrix products.
    #[default]
    Parameters,
    /// Every layer costs the same.
    Uniform,
    /// The floating-point operations that each layer [states](crate::Layer::flops). Layers without
    /// parameters need not: they cost nothing then.
    Flops,
    /// One cost for each layer, in any unit.
    Given(Vec<f64>),
}

impl From<Costs> for LayerCosts {
    /// Costs from elsewhere, such as the [times](stovepipe_tune::Profile::times) of a profile.
    fn from(costs: Costs) -> Self {
        Self::Given(costs.as_slice().to_vec())
    }
}

/// Configures a [`Pipeline`].
///
/// A backend is required; to train, so are a loss, an optimizer and a learning rate. By default there
/// is one stage, GPipe, four micro-batches for each rank, no recomputation, and a partition that
/// balances parameters.
pub struct Builder<I, O, T = NoLoss> {
    pub(crate) model: Sequential<I, O>,
    pub(crate) backend: Option<Arc<dyn Backend>>,
    transport: Option<Arc<dyn Transport<Packet>>>,
    stages: usize,
    stages_per_rank: Option<usize>,
    micro_batches: Option<usize>,
    schedule: Box<dyn Schedule>,
    policy: Box<dyn CheckpointPolicy>,
    partitioner: Box<dyn Partitioner>,
    costs: LayerCosts,
    pub(crate) optimizer: Option<ModuleOptimizer>,
    pub(crate) rates: Option<ModuleLrScheduler>,
    pub(crate) loss: Option<Arc<ErasedLoss>>,
    pub(crate) seed: u64,
    pub(crate) atomic_updates: bool,
    allowed: Vec<String>,
    clipping: Option<Clipping>,
    pub(crate) compute_dtype: Option<FloatDType>,
    loss_scaling: Option<LossScaling>,
    metrics: Vec<(String, Box<ErasedLoss>)>,
    target: PhantomData<fn(T)>,
}

impl<I: Boundary, O: Boundary> Builder<I, O> {
    pub(crate) fn new(model: Sequential<I, O>) -> Self {
        Self {
            model,
            backend: None,
            transport: None,
            stages: 1,
            stages_per_rank: None,
            micro_batches: None,
            schedule: Box::new(GPipe::default()),
            policy: Box::new(Never),
            partitioner: Box::new(Minimax),
            costs: LayerCosts::default(),
            optimizer: None,
            rates: None,
            loss: None,
            seed: 0,
            atomic_updates: false,
            allowed: Vec::new(),
            clipping: None,
            compute_dtype: None,
            loss_scaling: None,
            metrics: Vec::new(),
            target: PhantomData,
        }
    }
}

impl<I: Boundary, O: Boundary, T> Builder<I, O, T> {
    /// Where the stages run.
    #[must_use]
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backend = Some(Arc::new(backend));
        self
    }

    /// Spreads the pipeline over processes, as many as it has ranks: this one runs the rank that
    /// `transport`'s endpoint has. By default all ranks are threads of this process.
    ///
    /// Every process builds the same pipeline and makes the same calls with the same batches; before each,
    /// processes compare what they are about to do, and all refuse if one differs. A process makes only
    /// the layers of its own stages. Losses, weights, metrics, norms and predictions are known to all of
    /// them; [parameters](Pipeline::parameters), [gradients](Pipeline::gradients) and the spans of a
    /// timeline to the process of their rank, see [`Pipeline::gather`] and
    /// [`Pipeline::gather_timeline`].
    #[must_use]
    pub fn transport(mut self, transport: impl Transport<Packet> + 'static) -> Self {
        self.transport = Some(Arc::new(transport));
        self
    }

    /// How many stages the model is cut into, in all.
    #[must_use]
    pub fn stages(mut self, stages: usize) -> Self {
        self.stages = stages;
        self
    }

    /// How many stages share a rank. Must divide the number of stages. By default what the schedule is
    /// made for: 2 for schedules that interleave (if it divides the number of stages), otherwise 1.
    #[must_use]
    pub fn stages_per_rank(mut self, stages_per_rank: usize) -> Self {
        self.stages_per_rank = Some(stages_per_rank);
        self
    }

    /// How many micro-batches a mini-batch is cut into. A smaller batch makes fewer.
    #[must_use]
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = Some(micro_batches);
        self
    }

    /// In which order the work is done.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedule = Box::new(schedule);
        self
    }

    /// Which activations are kept and which are recomputed.
    #[must_use]
    pub fn checkpoint(mut self, policy: impl CheckpointPolicy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// How the layers are cut into stages.
    #[must_use]
    pub fn partitioner(mut self, partitioner: impl Partitioner + 'static) -> Self {
        self.partitioner = Box::new(partitioner);
        self
    }

    /// What the partitioner balances.
    #[must_use]
    pub fn layer_costs(mut self, costs: impl Into<LayerCosts>) -> Self {
        self.costs = costs.into();
        self
    }

    /// Runs as a tuner chose: sets stages, stages per rank, micro-batches, schedule, recomputation and the cut.
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
    ///     .push_module("down", |d| LinearConfig::new(8, 1).init(d), |m, x: Tensor<2>| m.forward(x));
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

    /// Any of Burn's optimizers. Parameter groups go by paths in the whole model.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Into<ModuleOptimizer>) -> Self {
        self.optimizer = Some(optimizer.into());
        self
    }

    /// A constant learning rate, or any of Burn's schedulers; it advances with every successful step.
    #[must_use]
    pub fn learning_rate(mut self, rate: impl LrScheduler + 'static) -> Self {
        self.rates = Some(ModuleLrScheduler::new(rate));
        self
    }

    /// Learning rates by parameter group.
    #[must_use]
    pub fn learning_rates(mut self, rates: ModuleLrScheduler) -> Self {
        self.rates = Some(rates);
        self
    }

    /// Keeps gradients from growing too large, over all stages.
    #[must_use]
    pub fn clip_gradients(mut self, clipping: Clipping) -> Self {
        self.clipping = Some(clipping);
        self
    }

    /// Mixed precision: layers compute in this type of float, parameters, their gradients and the optimizer's
    /// state stay in the type that they were made in. A layer's parameters are cast once for each update,
    /// its input, what it pops and what it returns in each forward, so boundaries travel in this type too; losses, metrics and predictions are made
    /// of outputs cast to at least 32 bits. In 16 bits with few of them for the exponent ([`FloatDType::F16`])
    /// gradients vanish without [`loss_scaling`](Self::loss_scaling).
    #[must_use]
    pub fn compute_dtype(mut self, dtype: FloatDType) -> Self {
        self.compute_dtype = Some(dtype);
        self
    }

    /// Scales the loss for the backward, and skips updates whose gradients aren't finite, on all stages
    /// alike. Without it such an update is made, or refused where gradients are
    /// [clipped by norm](Clipping::Norm).
    #[must_use]
    pub fn loss_scaling(mut self, scaling: LossScaling) -> Self {
        self.loss_scaling = Some(scaling);
        self
    }

    /// The seed that every layer's initialization and the randomness of its forwards derive theirs from.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Computes each update beside the parameters and swaps it in once every stage has succeeded, so
    /// that even a failure inside the update leaves everything as it was. Costs the memory of a second
    /// copy of parameters and optimizer state.
    #[must_use]
    pub fn atomic_updates(mut self, atomic_updates: bool) -> Self {
        self.atomic_updates = atomic_updates;
        self
    }

    /// Lets the layer of this name be recomputed although it holds a module that draws random numbers or
    /// counts statistics: for modules that do nothing, such as a dropout of probability 0 inside Burn's
    /// attention.
    #[must_use]
    pub fn allow_unreplayable(mut self, layer: impl Into<String>) -> Self {
        self.allowed.push(layer.into());
        self
    }

    /// What is minimized. Metrics are added after it.
    #[must_use]
    pub fn loss<U: Boundary>(self, loss: impl Loss<O, U>) -> Builder<I, O, U> {
        Builder {
            model: self.model,
            backend: self.backend,
            transport: self.transport,
            stages: self.stages,
            stages_per_rank: self.stages_per_rank,
            micro_batches: self.micro_batches,
            schedule: self.schedule,
            policy: self.policy,
            partitioner: self.partitioner,
            costs: self.costs,
            optimizer: self.optimizer,
            rates: self.rates,
            loss: Some(Arc::from(erase::<O, U>(loss))),
            seed: self.seed,
            atomic_updates: self.atomic_updates,
            allowed: self.allowed,
            clipping: self.clipping,
            compute_dtype: self.compute_dtype,
            loss_scaling: self.loss_scaling,
            metrics: Vec::new(),
            target: PhantomData,
        }
    }

    /// Measures something beside the loss: a sum and a weight like a [`Loss`], averaged over the mini-batch
    /// and reported by steps and evaluations under this name. It runs on the last stage for each
    /// micro-batch, and is read from the device once at the end.
    #[must_use]
    pub fn metric(mut self, name: impl Into<String>, metric: impl Loss<O, T>) -> Self
    where
        T: Boundary,
    {
        self.metrics.push((name.into(), erase::<O, T>(metric)));
        self
    }

    /// Cuts the model, initializes each stage on its device and starts the workers.
    ///
    /// # Errors
    ///
    /// [`BuildError`].
    pub fn build(mut self) -> Result<Pipeline<I, O, T>, BuildError> {
        let transport = self.transport.take();
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
        // What processes elsewhere share isn't known here.
        let shared_devices = if is_local { spec.shared_devices(ranks) } else { Vec::new() };
        for SharedDevice { device, ranks } in &shared_devices {
            tracing::info!(device, ?ranks, "ranks share a device");
        }
        Ok(Pipeline {
            workers,
            process,
            agreement: agreement_on_model(&spec),
            summaries: spec.summaries(),
            shared_devices,
            planner: spec.planner,
            programs: HashMap::new(),
            rates: spec.rates.unwrap_or_else(|| ModuleLrScheduler::new(0.0)),
            updates: 0,
            carried_weight: 0.0,
            scaler: spec.scaler,
            metric_names: spec.metric_names,
            ties: spec.settings.ties,
            side: BTreeMap::new(),
            partition: spec.partition,
            types: PhantomData,
        })
    }

    /// Checks the configuration and cuts the model; no layer is made yet.
    pub(crate) fn assemble(self) -> Result<PipelineSpec, BuildError> {
        let sizes = self.model.check()?;
        let shape = self.shape()?;
        let missing = |what, method| BuildError::Missing { what, method };
        let backend = self.backend.clone().ok_or(missing("backend", "backend"))?;
        let trains = self.loss.is_some();
        if trains && self.optimizer.is_none() {
            return Err(missing("optimizer", "optimizer"));
        }
        if trains && self.rates.is_none() {
            return Err(missing("learning rate", "learning_rate"));
        }
        self.check()?;
        let partition =
            self.partitioner.partition(&self.costs_of_layers(&sizes)?, shape.stages())?;
        let ties: Arc<[Tie]> = ties_of(&self.model.ties, &self.model.layers, &sizes)?.into();
        let skips = skips_of(&self.model.layers, &sizes)?;
        let edges = edges_of(&skips, &partition)?;
        let devices = backend.devices()?;
        if devices.is_empty() {
            let nothing = crate::BackendError::failed(backend.name(), "it lists no devices");
            return Err(BuildError::Backend(nothing));
        }
        self.check_compute_dtype(&devices[..devices.len().min(shape.ranks)], &sizes)?;
        let unreplayable = self.unreplayable(&sizes);
        let mut planner = Planner {
            schedule: self.schedule,
            policy: self.policy,
            shape,
            layers: partition.sizes(),
            placement: Vec::new(),
            edges,
            unreplayable,
        };
        let plan = planner.plan(shape.micro_batches)?;
        planner.placement = plan.placement().to_vec();
        if trains && plan.mode() == Mode::Training {
            // Refuses what can't be recomputed; the rest is only told.
            planner.program(Mode::Training, shape.micro_batches)?;
            for (_, layer, found) in &planner.unreplayable {
                tracing::warn!(
                    layer,
                    module = found.module,
                    "what it computes depends on what other threads do or on the order of \
                     micro-batches: {}",
                    found.advice
                );
            }
        }

        // Never used unless the pipeline trains.
        let optimizer = self.optimizer.unwrap_or_else(|| SgdConfig::new().init());
        let (metric_names, metrics): (Vec<_>, Vec<_>) = self.metrics.into_iter().unzip();
        Ok(PipelineSpec {
            layers: self.model.layers,
            sizes,
            partition,
            planner,
            skips,
            devices,
            optimizer,
            compute_dtype: self.compute_dtype,
            rates: self.rates,
            loss: self.loss,
            scaler: self.loss_scaling.map(Scaler::new),
            metric_names,
            tied_values: BTreeMap::new(),
            settings: StageSettings {
                backend,
                atomic_updates: self.atomic_updates,
                seed: self.seed,
                clipping: self.clipping,
                forgets_overflows: self.loss_scaling.is_some(),
                metrics: metrics.into(),
                ties,
            },
        })
    }

    /// Refuses settings that can't be met, whatever the model and the devices.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if self.optimizer.as_ref().is_some_and(ModuleOptimizer::has_gradient_clipping) {
            return Err(BuildError::OptimizerClips);
        }
        if let Some(limit) = self.clipping.map(Clipping::limit)
            && (limit <= 0.0 || limit.is_nan())
        {
            return Err(BuildError::Clipping { limit });
        }
        if let Some(scale) = self.loss_scaling.map(LossScaling::scale)
            && (scale <= 0.0 || !scale.is_finite())
        {
            return Err(BuildError::LossScale { scale });
        }
        Ok(())
    }

    /// Refuses a type to compute in that these devices or layers can't.
    pub(crate) fn check_compute_dtype(
        &self,
        devices: &[Device],
        sizes: &[LayerFacts],
    ) -> Result<(), BuildError> {
        let Some(dtype) = self.compute_dtype else { return Ok(()) };
        supports(devices, dtype)?;
        let burns_own =
            |size: &LayerFacts| size.unreplayable.iter().any(|u| u.module == "BatchNorm");
        match sizes.iter().position(burns_own) {
            Some(place) => {
                let layer = &self.model.layers[place].name;
                let reason = format!(
                    "the running statistics of Burn's BatchNorm in layer `{layer}` would be cast for good: use \
                     stovepipe's, which converts from it"
                );
                Err(BuildError::ComputeDtype { dtype, reason })
            }
            None => Ok(()),
        }
    }

    /// The layers whose forward can't be run twice, but for those that are allowed to.
    fn unreplayable(&self, sizes: &[LayerFacts]) -> Vec<(usize, String, Unreplayable)> {
        let layers = self.model.layers.iter().zip(sizes).enumerate();
        let found = layers.filter_map(|(index, (layer, size))| {
            let allowed = self.allowed.iter().any(|name| **name == *layer.name);
            let first = size.unreplayable.first().filter(|_| !allowed)?;
            Some((index, layer.name.to_string(), first.clone()))
        });
        found.collect()
    }

    fn shape(&self) -> Result<Shape, BuildError> {
        let usual = Some(self.schedule.default_stages_per_rank())
            .filter(|n| self.stages.is_multiple_of(*n));
        let stages_per_rank = self.stages_per_rank.or(usual).unwrap_or(1);
        for (what, value) in
            [("the number of stages", self.stages), ("stages_per_rank", stages_per_rank)]
        {
            if value == 0 {
                return Err(BuildError::Zero { what, value });
            }
        }
        if !self.stages.is_multiple_of(stages_per_rank) {
            return Err(BuildError::Schedule {
                schedule: self.schedule.name().to_owned(),
                reason: format!(
                    "{} stages can't be shared out {stages_per_rank} to a rank",
                    self.stages
                ),
            });
        }
        let ranks = self.stages / stages_per_rank;
        let micro_batches = self.micro_batches.unwrap_or(ranks.saturating_mul(4));
        if micro_batches == 0 {
            return Err(BuildError::Zero { what: "the number of micro-batches", value: 0 });
        }
        Ok(Shape::new(ranks, micro_batches).with_stages_per_rank(stages_per_rank))
    }

    fn costs_of_layers(&self, sizes: &[LayerFacts]) -> Result<Costs, BuildError> {
        let layers = sizes.len();
        Ok(match &self.costs {
            LayerCosts::Parameters => {
                Costs::new(sizes.iter().map(|size| size.parameters as f64).collect::<Vec<_>>())?
            }
            LayerCosts::Uniform => Costs::uniform(layers)?,
            LayerCosts::Flops => {
                let stated = self.model.layers.iter().zip(sizes).map(|(layer, size)| {
                    let free = (size.parameters == 0).then_some(0.0);
                    size.flops
                        .or(free)
                        .ok_or_else(|| BuildError::NoFlops { layer: layer.name.to_string() })
                });
                Costs::new(stated.collect::<Result<Vec<_>, _>>()?)?
            }
            LayerCosts::Given(costs) if costs.len() != layers => {
                return Err(BuildError::Costs { found: costs.len(), layers });
            }
            LayerCosts::Given(costs) => Costs::new(costs.clone())?,
        })
    }
}
