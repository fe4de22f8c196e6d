//! The two kinds of plans: those that train, and those that only run forward.

/// Whether a plan trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every forward has its backward.
    Training,
    /// Forwards only: evaluation and inference.
    ForwardOnly,
}
