//! A layer at work with its types erased: the interface of everything that runs layers.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::{Gradients, Tensor, TensorData};

use crate::autodiff::tape::{Forward, Forwarded, Recorded};
use crate::error::panic::guarded;
use crate::error::stage::StageError;
use crate::layer::context::LayerContext;
use crate::parameters::averaging::Averaging;
use crate::value::part::Part;

/// The names of a layer's skip values in the model, by the names that the layer uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkipNames {
    pub(crate) popped: BTreeMap<String, String>,
    pub(crate) stashed: BTreeMap<String, String>,
    /// The names in the model of popped values that need no gradient: nothing that trains has
    /// made them.
    pub(crate) constants: BTreeSet<String>,
}

impl SkipNames {
    /// Calls the skip values in the model as the layer itself does.
    pub(crate) fn own(popped: &[String], stashed: &[String]) -> Self {
        let own =
            |names: &[String]| names.iter().map(|name| (name.clone(), name.clone())).collect();
        Self { popped: own(popped), stashed: own(stashed), constants: BTreeSet::new() }
    }
}

/// A layer with its types erased.
pub(crate) trait ErasedLayer: Send {
    fn name(&self) -> &str;

    /// Returns the names of the skip values that forwards pop, as they are called in the model.
    fn pops(&self) -> &[String];

    /// Sets the names in the model of the skip values that the layer pops and stashes.
    fn name_skips(&mut self, names: SkipNames);

    /// Returns the bytes of the copies of the parameters that forwards compute with.
    fn copy_bytes(&self) -> u64;

    /// Runs forward; with a tape unless only the output is wanted.
    ///
    /// Inputs, outputs and what the context has to pop are off the tape and contiguous.
    fn forward(
        &mut self,
        inputs: Vec<Box<dyn Part>>,
        context: &mut LayerContext<'_>,
        mode: Forward,
    ) -> Result<Forwarded, StageError>;

    /// Takes the gradients of the module that a forward of this layer recorded, and adds them to
    /// the step's.
    fn accumulate(&mut self, recorded: Recorded, gradients: &mut Gradients);

    /// Completes the gradients of the step. If a factor is given, adds to them those that were
    /// carried over, times that factor.
    fn complete(&mut self, carried: Option<f64>);

    /// Returns sums of the squares of the complete gradients, except those of the parameters at the
    /// paths in `except`. They are still on the device, in pieces to be added in 64 bits.
    fn squares(&self, except: &HashSet<String>) -> Vec<Tensor<1>>;

    /// Returns the path of the first parameter whose gradient isn't finite so far in the step.
    ///
    /// Waits for the device.
    fn gradient_that_is_not_finite(&mut self) -> Option<String>;

    /// Returns the paths of the parameters that are to be trained and have no complete gradient.
    fn without_gradient(&self) -> Vec<String>;

    /// Returns the complete gradient of the parameter at a path, in 32 bits at least.
    fn gradient(&self, path: &str) -> Option<Box<dyn Part>>;

    /// Replaces the complete gradient of the parameter at a path.
    fn set_gradient(&mut self, path: &str, gradient: Box<dyn Part>);

    /// Sets the value of the parameter at a path.
    fn set_parameter(&mut self, path: &str, value: &TensorData);

    /// Averages the complete gradients and takes them out by parameter path.
    fn take_gradients(&mut self, averaging: Averaging) -> BTreeMap<String, TensorData>;

    /// Keeps the complete gradients for the next step.
    fn carry(&mut self);

    /// Prepares the update next to the parameters: a module and an optimizer that
    /// [`commit`](Self::commit) swaps in.
    fn prepare_update(
        &mut self,
        rate: &ModuleLearningRate,
        averaging: Averaging,
    ) -> Result<(), StageError>;

    /// Returns the bytes of the optimizer's state after the prepared update.
    fn prepared_state_bytes(&self) -> u64;

    /// Swaps the prepared update in or, if none was prepared, updates the parameters in place.
    fn commit(&mut self, rate: &ModuleLearningRate, averaging: Averaging)
    -> Result<(), StageError>;

    /// Forgets the step's gradients, what its forwards recorded and a prepared update.
    /// Gradients that were carried over stay.
    fn abandon(&mut self);

    /// Copies the parameters to the host, by path.
    fn parameters(&self) -> BTreeMap<String, TensorData>;
}

impl dyn ErasedLayer + '_ {
    /// Does `work` with the layer; a panic becomes an error that names the layer.
    pub(crate) fn guarded<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, StageError>,
    ) -> Result<R, StageError> {
        let layer = self.name().to_owned();
        guarded(|| work(self), |message| StageError::LayerPanicked { layer, message })
    }
}
