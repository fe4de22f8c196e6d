//! Errors of building a pipeline.

use burn::tensor::FloatDType;
use stovepipe_checkpoint::PolicyError;
use stovepipe_partition::PartitionError;
use stovepipe_runtime::StepError;
use stovepipe_schedule::PlanError;

use crate::backend::error::BackendError;

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
    /// A setting is for a layer that isn't there.
    #[error("`.{method}(\"{name}\")`: no layer has this name; there are {layers:?}")]
    UnknownLayer {
        /// The builder's method.
        method: &'static str,
        /// The name that was given.
        name: String,
        /// The names of the layers.
        layers: Vec<String>,
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
