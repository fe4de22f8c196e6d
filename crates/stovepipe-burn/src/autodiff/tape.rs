//! The records that forwards leave for backwards, and the results of both.

use std::any::Any;
use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use crate::layer::context::SkipValues;
use crate::layer::statistics::Observation;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// The record of the forwards of consecutive layers, from which their backward runs.
///
/// Only the first of them pops skip values, and only the last stashes some or adds to the loss.
pub(crate) struct Tape {
    /// The inputs of the first layer, as leaves where their gradients are wanted.
    pub(crate) inputs: Vec<Box<dyn Part>>,
    /// The module of each layer, with the leaves that were recorded.
    pub(crate) modules: Vec<Recorded>,
    /// The outputs of the last layer; none if the loss of the model follows.
    pub(crate) outputs: Vec<Box<dyn Part>>,
    /// The loss that it added, or that of the model.
    pub(crate) loss: Option<Tensor<1>>,
    /// The skip values that the first layer popped, as leaves, by their names in the model.
    pub(crate) popped: BTreeMap<String, Vec<Box<dyn Part>>>,
    /// The skip values that the last layer stashed, likewise by name.
    pub(crate) stashed: BTreeMap<String, Vec<Box<dyn Part>>>,
    /// Says whether the inputs or popped values of the last layer have been [lifted](Part::lift).
    pub(crate) is_lifted: bool,
}

/// A module whose type only its layer knows.
pub(crate) type Recorded = Box<dyn Any + Send>;

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

    /// Copies the outputs off the tape.
    pub(crate) fn values(&self) -> Vec<Box<dyn Part>> {
        self.outputs.iter().map(|part| part.clone_box().detach_to(None)).collect()
    }

    /// Says whether a layer that pops nothing can be recorded on the same tape.
    ///
    /// With several ends the order in which gradients are added would depend on where the tape
    /// ends.
    pub(crate) fn can_continue(&self) -> bool {
        let has_one_end = matches!(&self.outputs[..], [output] if output.is_tracked());
        has_one_end && self.loss.is_none() && self.stashed.is_empty()
    }

    /// Returns the outputs as the next layer takes them on the same tape.
    ///
    /// They are lifted unless the last layer is known to make them of its lifted input.
    pub(crate) fn continued(&mut self, depend_on_input: bool) -> Vec<Box<dyn Part>> {
        let lifts = !(std::mem::replace(&mut self.is_lifted, true) && depend_on_input);
        let crossing = self.outputs.drain(..).map(|part| part.contiguous());
        crossing.map(|part| if lifts { part.lift() } else { part }).collect()
    }

    /// Says whether the loss of the model is on it, behind the last layer.
    pub(crate) fn ends_in_loss(&self) -> bool {
        self.outputs.is_empty() && self.loss.is_some()
    }

    /// Adds the record of the next layer.
    pub(crate) fn extend(&mut self, next: Self) {
        let Self { modules, outputs, loss, stashed, .. } = next;
        self.modules.extend(modules);
        (self.outputs, self.loss, self.stashed) = (outputs, loss, stashed);
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
    /// The outputs, off the tape; none if there is a tape, which has them.
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
    Taped(Entry),
    /// Training behaviour, without a tape.
    Untaped,
    /// Evaluation behaviour, without a tape.
    Evaluate,
}

/// How inputs get onto a tape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// As leaves, whose gradients are wanted.
    Leaves,
    /// As constants.
    Constants,
    /// They are on it: the tape of the layer before goes on.
    Continued,
}
