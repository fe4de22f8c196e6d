//! Errors of building a pipeline, of a stage, and of training.

use burn::tensor::FloatDType;
use stovepipe_checkpoint::PolicyError;
use stovepipe_partition::PartitionError;
use stovepipe_runtime::{Cause, StepError};
use stovepipe_schedule::PlanError;
use stovepipe_transport::WireError;

use crate::backend::error::BackendError;
use crate::error::shape::ShapeError;
use crate::value::boundary::BoundaryError;

pub(crate) mod panic;
pub(crate) mod profile;
pub(crate) mod shape;

/// The reasons why a pipeline can't be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The model is empty.
    #[error("the model has no layers: push some")]
    NoLayers,
    /// Two layers have the same name.
    #[error(
        "two layers are named `{name}`: names must be unique, because they name parameters and \
         seeds"
    )]
    NameTwice {
        /// The name.
        name: String,
    },
    /// One parameter is held in two places.
    #[error(
        "`{first}` and `{second}` are one parameter, and each would be trained apart: hold it \
         once in one layer and use it twice, or tie them with `.tie([\"{first}\", \
         \"{second}\"])` on the model"
    )]
    SharedParameter {
        /// The path of one place in the model.
        first: String,
        /// The path of the other place.
        second: String,
    },
    /// Two parameters have the same path in the model.
    #[error(
        "two parameters go by the path `{path}`: {first} and {second}; rename a layer or a \
         field, because gradients and optimizer states are found by path"
    )]
    PathTwice {
        /// The path in the model.
        path: String,
        /// The path of one of them in its layer, and the layer.
        first: String,
        /// The same of the other.
        second: String,
    },
    /// There is a loss to minimize, but no parameter that could be trained.
    #[error(
        "nothing in the model can be trained: its layers have no parameters, or all are frozen; \
         leave the loss out if the pipeline is for predictions only"
    )]
    NothingTrains,
    /// The optimizer can't update a parameter.
    #[error(
        "the optimizer can't update `{parameter}` of shape {shape:?}: {reason}; give it another \
         optimizer by `ModuleOptimizer::with_group`, or freeze it"
    )]
    Optimizer {
        /// The parameter's path in the model.
        parameter: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The reason.
        reason: String,
    },
    /// A part of the configuration is missing.
    #[error("the pipeline has no {what}: call `.{method}(…)` on the builder")]
    Missing {
        /// The part that is missing.
        what: &'static str,
        /// The builder's method that sets it.
        method: &'static str,
    },
    /// A number in the configuration is impossible.
    #[error("{what} is {value}: give at least 1")]
    Zero {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// The layers' costs don't fit the model.
    #[error("{found} layer costs are given, the model has {layers} layers: give one for each")]
    Costs {
        /// The number of costs that are given.
        found: usize,
        /// The number of layers in the model.
        layers: usize,
    },
    /// Layers are balanced by their floating-point operations, and one doesn't state them.
    #[error(
        "layer `{layer}` doesn't state its floating-point operations: implement `Layer::flops` \
         for it, or balance something else with `.layer_costs(…)`"
    )]
    NoFlops {
        /// The layer.
        layer: String,
    },
    /// A layer whose forward can't be run twice is to be recomputed.
    #[error(
        "layer `{layer}` is recomputed, but {module} in it can't be: {advice}. If it does \
         nothing, as with probability 0, call `.allow_unreplayable(\"{layer}\")`"
    )]
    Unreplayable {
        /// The layer.
        layer: String,
        /// The module's type and its place in the layer.
        module: String,
        /// The reason, and the advice what to do.
        advice: &'static str,
    },
    /// A skip connection doesn't begin or end as it should.
    #[error(
        "skip `{skip}`: layer `{layer}` {problem}; every stashed value is popped once, by a \
         later layer"
    )]
    Skip {
        /// The skip's name.
        skip: String,
        /// The layer.
        layer: String,
        /// The problem.
        problem: &'static str,
    },
    /// Parameters can't be tied.
    #[error("`{path}` can't be tied: {problem}")]
    Tie {
        /// The parameter's path.
        path: String,
        /// The problem.
        problem: String,
    },
    /// The optimizer clips the gradient of each parameter by itself.
    #[error(
        "the optimizer clips the gradient of each parameter by itself; call `.clip_gradients(…)` \
         on the builder instead, which looks at all stages, and leave clipping out of the \
         optimizer's configuration"
    )]
    OptimizerClips,
    /// The limit that gradients are to be clipped at isn't above 0.
    #[error("gradients can't be clipped at {limit}: give a number above 0")]
    Clipping {
        /// The limit.
        limit: f64,
    },
    /// The scale of the loss isn't finite and above 0.
    #[error(
        "the loss can't be scaled by {scale}: give a finite number above 0, best a power of two"
    )]
    LossScale {
        /// The scale.
        scale: f64,
    },
    /// Layers can't compute in the type that was asked for.
    #[error(
        "layers can't compute in {dtype:?}: {reason}; ask for another type with \
         `.compute_dtype(…)`, or leave it out"
    )]
    ComputeDtype {
        /// The type.
        dtype: FloatDType,
        /// The reason.
        reason: String,
    },
    /// There are more or fewer processes than ranks.
    #[error(
        "there are {processes} processes, but the pipeline has {ranks} ranks: start one for \
         each, or change the number of stages"
    )]
    Processes {
        /// The number of processes that the transport connects.
        processes: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// The schedule places stages on ranks in a way that the pipeline doesn't support.
    #[error("the schedule `{schedule}` doesn't fit: {reason}")]
    Schedule {
        /// The schedule's name.
        schedule: String,
        /// The reason.
        reason: String,
    },
    /// A schedule refuses the shape, or writes an invalid plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The layers can't be cut.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The checkpoint policy refuses the model.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The backend has no device, or no thread for a rank.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A rank's worker can't be started.
    #[error(transparent)]
    Worker(#[from] StepError),
}

/// The reasons why a stage fails.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// A layer panicked.
    #[error("layer `{layer}` panicked: {message}")]
    LayerPanicked {
        /// The layer.
        layer: String,
        /// The message of the panic.
        message: String,
    },
    /// The loss or a metric panicked.
    #[error("{what} panicked: {message}")]
    LossPanicked {
        /// The words for it: the loss, or the metric and its name.
        what: String,
        /// The message of the panic.
        message: String,
    },
    /// A value of the wrong type arrived.
    #[error("layer `{layer}` {source}")]
    Boundary {
        /// The layer.
        layer: String,
        /// The type that it takes, and the one that arrived.
        source: BoundaryError,
    },
    /// A layer's forward, run once more, returned another shape than at first.
    #[error(
        "layer `{layer}` returned {output} when it was run again, but the gradient that arrived is \
         {gradient}: a forward must return the same shape for the same input"
    )]
    Shape {
        /// The layer.
        layer: String,
        /// The output's type and shape.
        output: String,
        /// The gradient's type and shape.
        gradient: String,
    },
    /// A forward stashed other values than the layer declares.
    #[error("layer `{layer}` says that it stashes {declared:?}, but its forward stashed {found:?}")]
    Stash {
        /// The layer.
        layer: String,
        /// The names that the layer declares.
        declared: Vec<String>,
        /// The names that the forward stashed.
        found: Vec<String>,
    },
    /// A value has another shape than it is given as.
    #[error(transparent)]
    Value(#[from] ShapeError),
    /// The loss was given a value of another type than it takes.
    #[error("the loss {0}")]
    Loss(BoundaryError),
    /// The executor asked for an action out of order.
    #[error("layer `{layer}`: {problem}")]
    Order {
        /// The layer.
        layer: String,
        /// The problem.
        problem: &'static str,
    },
    /// The mini-batch has no target, but the step needs a loss.
    #[error("the step needs a loss, but the mini-batch has no target")]
    NoTarget,
    /// The weight of the whole mini-batch isn't finite and above 0, so that no mean exists.
    #[error(
        "the loss's weights add up to {weight}: the mean over the mini-batch is undefined; give \
         it at least one sample or token that counts"
    )]
    Weight {
        /// The sum.
        weight: f64,
    },
    /// Gradients that are to be clipped aren't finite.
    #[error(
        "the norm of the gradient is {norm}: nothing is updated; lower the learning rate, look \
         for a loss or layer that overflows, or skip such updates with `.loss_scaling(…)`"
    )]
    Norm {
        /// The norm.
        norm: f64,
    },
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Another stage sent a report that can't be read.
    #[error("the report of stage {stage} can't be read: do all ranks run the same version?")]
    Report {
        /// The stage.
        stage: usize,
    },
}

impl StageError {
    /// Returns the name of the layer that failed, if a layer did.
    #[must_use]
    pub fn layer(&self) -> Option<&str> {
        match self {
            Self::LayerPanicked { layer, .. }
            | Self::Boundary { layer, .. }
            | Self::Shape { layer, .. }
            | Self::Stash { layer, .. }
            | Self::Order { layer, .. } => Some(layer),
            Self::Value(error) => error.layer(),
            _ => None,
        }
    }

    /// Says that the executor asked for an action before a step has begun.
    pub(crate) fn no_step(layer: &str) -> Self {
        Self::Order { layer: layer.to_owned(), problem: "no step has begun" }
    }

    /// Says that a layer lacks the activations that its forward should have left.
    pub(crate) fn gone(layer: &str) -> Self {
        Self::Order {
            layer: layer.to_owned(),
            problem: "its activations for this micro-batch are gone or were never made",
        }
    }
}

/// The reasons why a step, an evaluation or a prediction failed.
///
/// Unless an error says otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The input or target can't be split into micro-batches.
    #[error("the {what} can't be split into micro-batches: {reason}")]
    Batch {
        /// The word for the value: input or target.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// Input and target have different numbers of samples.
    #[error("the input has {input} samples, the target {target}: give as many of both")]
    Samples {
        /// The number of samples in the input.
        input: usize,
        /// The number of samples in the target.
        target: usize,
    },
    /// A side input has another number of samples than the input.
    #[error(
        "the side input `{name}` has {found} samples, the input {input}: give one for each sample, \
         or give what is the same for all samples with `.side_constant(\"{name}\", …)`"
    )]
    SideInput {
        /// The side input's name.
        name: String,
        /// The number of samples in the input.
        input: usize,
        /// The number of samples in the side input.
        found: usize,
    },
    /// The pipeline has no plan for this number of samples.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A stage's result can't be used, or its device failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Another process sent a timeline that can't be read.
    #[error("another process sent a timeline that can't be read: do all run the same version?")]
    Timeline,
    /// There is no such rank.
    #[error("there is no rank {rank}: the pipeline has {ranks}, which count from 0")]
    NoRank {
        /// The rank that was asked for.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A layer panicked while its output was recorded.
    #[error("a layer panicked while its output was recorded: its message stands above")]
    Panicked,
    /// The peak is asked of a memory counter that doesn't know it.
    #[error(
        "the memory counter can't tell the most that was allocated at once: give one that \
         implements `peak_bytes`"
    )]
    NoPeaks,
    /// The outputs of the micro-batches can't be joined.
    #[error("the outputs of the micro-batches can't be joined along the batch axis")]
    Join,
    /// The model's output has another type than the model states.
    #[error("the model's output {0}")]
    Output(#[from] BoundaryError),
    /// The model's output can't be sent to the other processes.
    #[error("the model's output can't be shared: {0}")]
    Wire(#[from] WireError),
}

impl TrainError {
    /// Returns the name of the layer that failed, if a layer of this process did.
    ///
    /// Where ranks are processes, the others have the name only in the text of the error.
    ///
    /// ```
    /// use stovepipe_burn::{StageError, TrainError};
    ///
    /// let panicked =
    ///     StageError::LayerPanicked { layer: "up".to_owned(), message: "why".to_owned() };
    /// assert_eq!(TrainError::from(panicked).layer(), Some("up"));
    /// ```
    #[must_use]
    pub fn layer(&self) -> Option<&str> {
        match self {
            Self::Stage(error) => error.layer(),
            Self::Step(StepError::Stage { cause: Cause::Error(error), .. }) => {
                error.downcast_ref::<StageError>()?.layer()
            }
            _ => None,
        }
    }
}
