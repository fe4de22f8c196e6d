//! Everything that a rank does in a program. How actions are written stands in `text`.

use crate::words::compute::Compute;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::message::Message;

/// Anything a rank does in a program: compute, or one end of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// A stage computes.
    Compute(Compute),
    /// The rank of the message's source hands it to the transport.
    Send(Message),
    /// The rank of the message's destination takes it from the transport.
    Recv(Message),
}

impl Action {
    /// The stage that acts: the computing one, a send's source, a receive's destination.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self {
            Self::Compute(c) => c.stage,
            Self::Send(m) => m.from,
            Self::Recv(m) => m.to,
        }
    }

    /// The micro-batch acted on.
    #[must_use]
    pub fn micro_batch(&self) -> MicroBatch {
        match self {
            Self::Compute(c) => c.micro_batch,
            Self::Send(m) | Self::Recv(m) => m.micro_batch,
        }
    }

    /// The compute action, if it is one.
    #[must_use]
    pub fn compute(&self) -> Option<Compute> {
        match self {
            Self::Compute(c) => Some(*c),
            Self::Send(_) | Self::Recv(_) => None,
        }
    }
}

impl From<Compute> for Action {
    fn from(compute: Compute) -> Self {
        Self::Compute(compute)
    }
}
