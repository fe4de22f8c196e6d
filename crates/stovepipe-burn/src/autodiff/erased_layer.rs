//! A layer at work with its types erased: the interface of everything that runs layers.

use std::collections::{BTreeMap, HashSet};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::TensorData;

use crate::autodiff::tape::{Backwarded, Forward, Forwarded, Tape};
use crate::error::StageError;
use crate::layer::context::{LayerContext, SkipValues};
use crate::parameters::averaging::Averaging;
use crate::value::part::Part;

/// A layer with its types erased.
pub(crate) trait ErasedLayer: Send {
    fn name(&self) -> &str;

    /// The names of what forwards pop.
    fn pops(&self) -> &[String];

    /// From now on what it pops and stashes goes by these names, given by those that the layer uses.
    fn name_skips(&mut self, names: [BTreeMap<String, String>; 2]);

    /// The bytes of copies of the parameters that forwards compute with.
    fn copy_bytes(&self) -> u64;

    /// Runs forward; with a tape unless only the output is wanted. Inputs and outputs are off the
    /// tape and contiguous, and so is what the context has to pop.
    fn forward(
        &mut self,
        inputs: Vec<Box<dyn Part>>,
        context: &mut LayerContext<'_>,
        mode: Forward,
    ) -> Result<Forwarded, StageError>;

    /// Adds to the layer's gradients and returns those of its inputs. `stashed` has the gradients of what
    /// it stashed; what it added to the loss is multiplied by `scale`, as they are.
    fn backward(
        &mut self,
        tape: Tape,
        gradients: Vec<Option<Box<dyn Part>>>,
        stashed: SkipValues,
        scale: f64,
    ) -> Result<Backwarded, StageError>;

    /// The gradients of the step are complete: adds those that were carried over times a factor, if one is
    /// given.
    fn complete(&mut self, carried: Option<f64>);

    /// The sum of the squares of the complete gradients but for the parameters at some paths.
    fn squared_norm(&self, but: &HashSet<String>) -> f64;

    /// The complete gradient of the parameter at a path, copied to the host.
    fn gradient(&self, path: &str) -> Option<Vec<f32>>;

    /// Puts another in its place.
    fn set_gradient(&mut self, path: &str, gradient: &[f32]);

    /// Gives the parameter at a path a value.
    fn set_parameter(&mut self, path: &str, value: &TensorData);

    /// Averages the complete gradients and takes them out by parameter path.
    fn take_gradients(&mut self, averaging: Averaging) -> BTreeMap<String, TensorData>;

    /// Keeps the complete gradients for the next step.
    fn carry(&mut self);

    /// Computes the update beside the parameters.
    fn prepare_update(
        &mut self,
        rate: &ModuleLearningRate,
        averaging: Averaging,
    ) -> Result<(), StageError>;

    /// The size of the optimizer's state after the staged update.
    fn staged_state_bytes(&self) -> u64;

    /// Puts the staged update in place, or updates in place.
    fn commit(&mut self, rate: &ModuleLearningRate, averaging: Averaging)
    -> Result<(), StageError>;

    /// Forgets the step's gradients and anything staged; what was carried over stays.
    fn abandon(&mut self);

    /// The parameters by path.
    fn parameters(&self) -> BTreeMap<String, TensorData>;
}
