//! What forwards leave behind for backwards, and what both return.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use crate::layer::context::SkipValues;
use crate::layer::statistics::Observation;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// What one forward of one layer leaves behind for its backward.
pub(crate) struct Tape {
    pub(crate) inputs: Vec<Box<dyn Part>>,
    pub(crate) outputs: Vec<Box<dyn Part>>,
    /// What the layer added to the loss.
    pub(crate) loss: Option<Tensor<1>>,
    /// What it popped, as leaves, and what it stashed, by name.
    pub(crate) popped: BTreeMap<String, Vec<Box<dyn Part>>>,
    pub(crate) stashed: BTreeMap<String, Vec<Box<dyn Part>>>,
}

impl Tape {
    /// The names of what the forward stashed.
    pub(crate) fn stashed(&self) -> Vec<String> {
        self.stashed.keys().cloned().collect()
    }

    /// Copies of it, which serve as gradients where any will do.
    pub(crate) fn stashed_values(&self) -> SkipValues {
        let copied = |parts: &Vec<Box<dyn Part>>| {
            Packet::of(parts.iter().map(|part| part.clone_box().detach_to(None)).collect())
        };
        self.stashed.iter().map(|(name, parts)| (name.clone(), copied(parts))).collect()
    }
}

/// Frees what Burn keeps of operations whose results are gone. It records those without a tape as well, and
/// forgets them only in a backward, of whatever.
pub(crate) fn free_abandoned(device: &Device) {
    let leaf = Tensor::<1>::ones([1], &device.clone().autodiff()).require_grad();
    leaf.sum().backward();
}

/// What a forward makes.
pub(crate) struct Forwarded {
    pub(crate) outputs: Vec<Box<dyn Part>>,
    /// If there is one.
    pub(crate) tape: Option<Tape>,
    /// What the layer adds to the loss, off the tape.
    pub(crate) loss: Option<Tensor<1>>,
    /// What it stashes, off the tape.
    pub(crate) stashed: SkipValues,
    /// What batch normalizations in it saw.
    pub(crate) observations: Vec<Observation>,
}

/// What a backward makes: gradients of the inputs, and of what was popped.
pub(crate) struct Backwarded {
    pub(crate) inputs: Vec<Option<Box<dyn Part>>>,
    pub(crate) popped: SkipValues,
}

/// How a forward runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Forward {
    /// With a tape; the input's gradient is wanted or not.
    Taped {
        /// Whether the input's gradient is wanted.
        input_gradient: bool,
    },
    /// Training behaviour, no tape.
    Untaped,
    /// Evaluation behaviour, no tape.
    Evaluate,
}
