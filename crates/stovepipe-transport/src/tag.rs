//! [`Tag`]: which message this is. Both ends derive it from their programs, so nothing
//! has to be negotiated. It names stages, not ranks: where a stage lives is the caller's
//! knowledge.

use std::fmt;

/// Which way a value travels through the stages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Direction {
    /// Activations, on their way to the loss.
    Forward,
    /// Gradients, on their way back from the loss.
    Backward,
    /// Gradients of what several stages share, on their way to the others that have it. They go
    /// once in a step, and so as micro-batch 0.
    Shared,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Shared => "shared",
        })
    }
}

/// Which message: everything that both ends know without talking.
///
/// ```
/// use stovepipe_transport::{Direction, Tag};
///
/// let direction = Direction::Forward;
/// let tag = Tag { step: 3, micro_batch: 1, from_stage: 0, to_stage: 1, direction };
/// assert_eq!(tag.to_string(), "step 3, micro-batch 1, stage 0 -> 1, forward");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Tag {
    /// The step the message belongs to. Numbers only grow.
    pub step: u64,
    /// The micro-batch whose activations or gradients these are.
    pub micro_batch: u32,
    /// The stage that produced the value.
    pub from_stage: u32,
    /// The stage that consumes the value.
    pub to_stage: u32,
    /// Activations, gradients or shared gradients.
    pub direction: Direction,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {}, micro-batch {}, stage {} -> {}, {}",
            self.step, self.micro_batch, self.from_stage, self.to_stage, self.direction
        )
    }
}
