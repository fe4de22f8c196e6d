//! The reasons for which a policy can't decide.

/// Why a checkpoint policy refuses a plan.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has this name.
    #[error("there is no checkpoint policy `{name}`: use one of {known}")]
    UnknownPolicy {
        /// The name asked for.
        name: String,
        /// The names there are, with the forms of their arguments.
        known: String,
    },
    /// A policy can't be made from this argument, or without one.
    #[error("`{found}` can't be used: write it like `{example}`")]
    Argument {
        /// The name, and the argument if there is one.
        found: String,
        /// One that can be used, with the name.
        example: &'static str,
    },
    /// A policy needs a fact that isn't known.
    #[error("`{policy}` needs to know {fact}")]
    MissingFact {
        /// The policy's name.
        policy: &'static str,
        /// The missing fact, and where it comes from.
        fact: &'static str,
    },
    /// Layers are given for another number of stages.
    #[error(
        "layers are given for {found} stages, the plan has {expected}: make both from the same partition"
    )]
    Stages {
        /// How many are given.
        found: usize,
        /// How many the plan has.
        expected: usize,
    },
    /// A layer is named that the model doesn't have.
    #[error("there is no layer {layer}: the model has {layers}, counted from 0")]
    Layer {
        /// The layer.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
    /// Costs are given for another number of layers.
    #[error("costs are given for {found} layers, the model has {layers}: give one for each")]
    Costs {
        /// How many are given.
        found: usize,
        /// How many layers there are.
        layers: usize,
    },
    /// A time isn't one.
    #[error("recomputing layer {layer} takes {time}: give a finite time of at least 0")]
    Time {
        /// The layer.
        layer: usize,
        /// Its time.
        time: f64,
    },
    /// No way to recompute fits.
    #[error(
        "rank {rank} needs at least {least} bytes for activations, however much is recomputed, and has \
         {budget}: use smaller micro-batches, fewer of them at once (1f1b), more ranks, or a larger budget"
    )]
    Budget {
        /// The rank.
        rank: usize,
        /// The bytes that it needs at least.
        least: u64,
        /// The bytes that it has.
        budget: u64,
    },
    /// The retention is impossible.
    #[error(transparent)]
    Plan(#[from] stovepipe_schedule::PlanError),
}
