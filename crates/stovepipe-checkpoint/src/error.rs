//! Why a policy can't decide.

/// Why a checkpoint policy refuses a plan.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
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
    /// The retention is impossible.
    #[error(transparent)]
    Plan(#[from] stovepipe_schedule::PlanError),
}
