//! Messages, and the edges between stages that they travel along.

use serde::{Deserialize, Serialize};

use crate::words::ids::{MicroBatch, Stage};

/// One pair of stages that exchanges a value per micro-batch and direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// The lower stage: sends activations, receives gradients.
    pub from: Stage,
    /// The higher stage: receives activations, sends gradients.
    pub to: Stage,
}

/// The way a message takes through the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Direction {
    /// An activation, from a lower stage to a higher one.
    Forward,
    /// A gradient, from a higher stage to a lower one.
    Backward,
}

impl Direction {
    /// The letter of the text form.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
        }
    }
}

/// A value that travels between two stages on different ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Message {
    /// Activation or gradient.
    pub direction: Direction,
    /// The stage that produced it.
    pub from: Stage,
    /// The stage that needs it.
    pub to: Stage,
    /// The micro-batch it belongs to.
    pub micro_batch: MicroBatch,
}

impl Message {
    /// The edge that it travels along.
    #[must_use]
    pub fn edge(&self) -> Edge {
        match self.direction {
            Direction::Forward => Edge { from: self.from, to: self.to },
            Direction::Backward => Edge { from: self.to, to: self.from },
        }
    }

    /// Whether the two stages follow each other in the model, so that the text form needs no peer.
    pub(crate) fn is_between_neighbours(&self) -> bool {
        let Edge { from, to } = self.edge();
        from.index() + 1 == to.index()
    }
}
