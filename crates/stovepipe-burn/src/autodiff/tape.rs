//! The records that forwards leave for backwards, and the results of both.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use crate::layer::context::SkipValues;
use crate::layer::statistics::Observation;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// The record of one forward of one layer, from which its backward runs.
pub(crate) struct Tape {
    /// The inputs, as leaves where their gradients are wanted.
    pub(crate) inputs: Vec<Box<dyn Part>>,
    pub(crate) outputs: Vec<Box<dyn Part>>,
    /// The loss that the layer added.
    pub(crate) loss: Option<Tensor<1>>,
    /// The skip values that the layer popped, as leaves, by their names in the model.
    pub(crate) popped: BTreeMap<String, Vec<Box<dyn Part>>>,
    /// The skip values that it stashed, likewise by name.
    pub(crate) stashed: BTreeMap<String, Vec<Box<dyn Part>>>,
}

impl Tape {
    /// Returns the names of the skip values that the forward stashed.
    pub(crate) fn stashed(&self) -> Vec<String> {
        self.stashed.keys().cloned().collect()
    }

    /// Copies the stashed skip values off the tape. The copies serve as gradients where any
    /// values will do.
    pub(crate) fn stashed_values(&self) -> SkipValues {
        let copied = |parts: &Vec<Box<dyn Part>>| {
            Packet::of(parts.iter().map(|part| part.clone_box().detach_to(None)).collect())
        };
        self.stashed.iter().map(|(name, parts)| (name.clone(), copied(parts))).collect()
    }
}

/// Frees what Burn keeps of operations whose results are gone.
///
/// Burn records operations of forwards without a tape as well, and forgets them only in a
/// backward, whichever it is. It then forgets the graphs of which no tensor is left, so that
/// those with the leaf of a parameter stay while its module holds the leaf.
pub(crate) fn free_abandoned(device: &Device) {
    let leaf = Tensor::<1>::ones([1], &device.clone().autodiff()).require_grad();
    leaf.sum().backward();
}

/// The results of a forward.
pub(crate) struct Forwarded {
    pub(crate) outputs: Vec<Box<dyn Part>>,
    /// The tape, if one was asked for.
    pub(crate) tape: Option<Tape>,
    /// The loss that the layer added, off the tape.
    pub(crate) loss: Option<Tensor<1>>,
    /// The skip values that it stashed, off the tape.
    pub(crate) stashed: SkipValues,
    /// The observations of batch normalizations in the layer.
    pub(crate) observations: Vec<Observation>,
}

/// The results of a backward: gradients of the inputs, and of the skip values that were popped.
pub(crate) struct Backwarded {
    pub(crate) inputs: Vec<Option<Box<dyn Part>>>,
    pub(crate) popped: SkipValues,
}

/// The kind of a forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Forward {
    /// Training behaviour, with a tape.
    Taped {
        /// Says whether the gradient of the input is wanted.
        input_gradient: bool,
    },
    /// Training behaviour, without a tape.
    Untaped,
    /// Evaluation behaviour, without a tape.
    Evaluate,
}
