//! One layer at work: its module, the tape of each of its forwards, its accumulated gradients and its
//! optimizer, with the layer's types erased.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};

use crate::batch_norm::Observation;
use crate::boundary::{from_parts, into_parts};
use crate::context::SkipValues;
use crate::gradients::{self, Averaging};
use crate::layer::Named;
use crate::loss::scaled;
use crate::part::{Packet, Part, copied, read};
use crate::precision::{cast_gradients, cast_parameters};
use crate::{Layer, LayerContext, StageError};

/// What one forward of one layer leaves behind for its backward.
pub(crate) struct Tape {
    inputs: Vec<Box<dyn Part>>,
    outputs: Vec<Box<dyn Part>>,
    /// What the layer added to the loss.
    loss: Option<Tensor<1>>,
    /// What it popped, as leaves, and what it stashed, by name.
    popped: BTreeMap<String, Vec<Box<dyn Part>>>,
    stashed: BTreeMap<String, Vec<Box<dyn Part>>>,
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

pub(crate) struct TrainedLayer<L: Layer> {
    name: Arc<str>,
    stashes: Vec<String>,
    /// What is popped, as others call it.
    pops: Vec<String>,
    /// What others call what it pops, and what it stashes.
    names: [BTreeMap<String, String>; 2],
    /// Empty only while an update runs, and after one that panicked.
    module: Option<Named<L>>,
    /// The module in the type that forwards compute in, if that isn't the parameters' own; made once for each
    /// update, when first needed.
    computing: Option<Named<L>>,
    /// The module as forwards without a tape use it, likewise.
    untaped: Option<Named<L>>,
    evaluating: Option<Named<L>>,
    /// Of the step that runs.
    gradients: GradientsAccumulator<Named<L>>,
    /// Of the steps since the last update.
    carried: Option<GradientsParams>,
    /// All of them, once the step's are complete.
    complete: GradientsParams,
    optimizer: ModuleOptimizer,
    /// What forwards compute in, if not in the parameters' own type.
    compute: Option<FloatDType>,
    staged: Option<(Named<L>, ModuleOptimizer)>,
}

impl<L: Layer> TrainedLayer<L> {
    pub(crate) fn new(
        name: Arc<str>,
        module: Named<L>,
        optimizer: ModuleOptimizer,
        compute: Option<FloatDType>,
    ) -> Self {
        let (stashes, pops) = (sorted(module.inner().stashes()), module.inner().pops());
        Self {
            name,
            names: [own_names(&pops), own_names(&stashes)],
            stashes,
            pops,
            module: Some(module),
            computing: None,
            untaped: None,
            evaluating: None,
            gradients: GradientsAccumulator::new(),
            carried: None,
            complete: GradientsParams::new(),
            optimizer,
            compute,
            staged: None,
        }
    }

    fn module(&self) -> Result<&Named<L>, StageError> {
        self.module.as_ref().ok_or_else(|| StageError::Order {
            layer: self.name.to_string(),
            problem: "an update failed half-way and left no parameters",
        })
    }

    /// The module in the type that forwards compute in.
    fn computing(&mut self) -> Result<Named<L>, StageError> {
        let module = self.module()?.clone();
        let Some(dtype) = self.compute else { return Ok(module) };
        Ok(self.computing.get_or_insert_with(|| cast_parameters(module, dtype)).clone())
    }

    /// Takes the complete gradients.
    fn averaged(&mut self, averaging: Averaging) -> Result<GradientsParams, StageError> {
        let mut complete = std::mem::take(&mut self.complete);
        Ok(gradients::average(self.module()?, &mut complete, averaging))
    }

    fn forget_copies(&mut self) {
        (self.computing, self.untaped, self.evaluating) = (None, None, None);
    }

    fn replace(&mut self, module: Named<L>) {
        self.module = Some(module);
        self.forget_copies();
    }
}

/// Names that stand for themselves.
fn own_names(names: &[String]) -> BTreeMap<String, String> {
    names.iter().map(|name| (name.clone(), name.clone())).collect()
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}

impl<L: Layer> ErasedLayer for TrainedLayer<L> {
    fn name(&self) -> &str {
        &self.name
    }

    fn pops(&self) -> &[String] {
        &self.pops
    }

    fn name_skips(&mut self, names: [BTreeMap<String, String>; 2]) {
        self.pops = names[0].values().cloned().collect();
        self.names = names;
    }

    fn copy_bytes(&self) -> u64 {
        match (&self.computing, &self.module, self.compute) {
            (Some(_), Some(module), Some(dtype)) => bytes_of_copies(module, dtype.into()),
            _ => 0,
        }
    }

    fn forward(
        &mut self,
        inputs: Vec<Box<dyn Part>>,
        context: &mut LayerContext<'_>,
        mode: Forward,
    ) -> Result<Forwarded, StageError> {
        let compute = self.compute;
        context.compute = compute;
        let ready = |parts: Vec<Box<dyn Part>>, leaves: bool| -> Vec<Box<dyn Part>> {
            let ready = parts.into_iter().map(|part| {
                let part = match compute {
                    Some(dtype) => part.cast(dtype),
                    None => part,
                };
                match mode {
                    Forward::Taped { .. } if leaves => part.leaf(),
                    Forward::Taped { .. } | Forward::Untaped => part.track(),
                    Forward::Evaluate => part,
                }
            });
            ready.collect()
        };
        let inputs = ready(inputs, matches!(mode, Forward::Taped { input_gradient: true }));
        let leaves = copied(&inputs);
        let mut popped = BTreeMap::new();
        let mut arrived = std::mem::take(&mut context.popped);
        for (called, name) in &self.names[0] {
            let Some(packet) = arrived.remove(name) else { continue };
            let parts = ready(packet.into_values(), true);
            context.popped.insert(called.clone(), Packet::of(copied(&parts)));
            popped.insert(name.clone(), parts);
        }
        let input = from_parts::<L::Input>(inputs)
            .map_err(|source| StageError::Boundary { layer: self.name.to_string(), source })?;
        let module = self.computing()?;
        let module = match mode {
            Forward::Taped { .. } => module,
            Forward::Untaped => self.untaped.get_or_insert_with(|| module.no_grad()).clone(),
            Forward::Evaluate => self.evaluating.get_or_insert_with(|| module.valid()).clone(),
        };
        // What comes out may be of another type, such as that of a sum in 32 bits.
        let typed = |parts: Vec<Box<dyn Part>>| match compute {
            Some(dtype) => parts.into_iter().map(|part| part.cast(dtype)).collect(),
            None => parts,
        };
        let outputs = typed(into_parts(module.inner().forward(input, context)));
        let off_tape = |parts: &[Box<dyn Part>]| -> Vec<Box<dyn Part>> {
            parts.iter().map(|part| part.clone_box().detach_to(None)).collect()
        };
        let detached = off_tape(&outputs);
        let stashed = std::mem::take(&mut context.stashed).into_iter();
        let stashed: BTreeMap<String, Vec<Box<dyn Part>>> =
            stashed.map(|(name, packet)| (name, typed(packet.into_values()))).collect();
        if !stashed.keys().eq(&self.stashes) {
            return Err(StageError::Stash {
                layer: self.name.to_string(),
                declared: self.stashes.clone(),
                found: stashed.into_keys().collect(),
            });
        }
        let named = |(called, parts)| (self.names[1][&called].clone(), parts);
        let stashed: BTreeMap<_, _> = stashed.into_iter().map(named).collect();
        let sent = stashed.iter().map(|(name, parts)| (name.clone(), Packet::of(off_tape(parts))));
        let sent = sent.collect();
        let added = context.take_losses();
        let loss = added.clone().map(|loss| match mode {
            Forward::Taped { .. } | Forward::Untaped if loss.device().is_autodiff() => loss.inner(),
            _ => loss,
        });
        let tape = match mode {
            Forward::Taped { .. } => {
                Some(Tape { inputs: leaves, outputs, loss: added, popped, stashed })
            }
            Forward::Untaped | Forward::Evaluate => None,
        };
        let observations = context.take_observations();
        Ok(Forwarded { outputs: detached, tape, loss, stashed: sent, observations })
    }

    fn backward(
        &mut self,
        tape: Tape,
        gradients: Vec<Option<Box<dyn Part>>>,
        mut stashed: SkipValues,
        scale: f64,
    ) -> Result<Backwarded, StageError> {
        let Tape { inputs, outputs, loss, popped, stashed: stashes } = tape;
        let (mut ends, mut all) = (outputs, gradients);
        for (name, parts) in stashes {
            let gradients = stashed.remove(&name).map(Packet::into_gradients);
            all.extend(gradients.unwrap_or_else(|| parts.iter().map(|_| None).collect()));
            ends.extend(parts);
        }
        for (end, gradient) in ends.iter().zip(&all) {
            let gradient = gradient.as_ref().filter(|gradient| gradient.shape() != end.shape());
            if let Some(gradient) = gradient {
                return Err(StageError::Shape {
                    layer: self.name.to_string(),
                    output: end.describe(),
                    gradient: gradient.describe(),
                });
            }
        }
        // sum(y * dy) has the gradient dy at y, exactly: that continues the backward pass.
        let seeds = ends.iter().zip(&all).filter(|(end, _)| end.is_tracked());
        let seed = seeds
            .filter_map(|(end, gradient)| end.seed(gradient.as_deref()?))
            .chain(loss.filter(Tensor::is_tracked).map(|loss| scaled(loss, scale)))
            .reduce(|sum, seed| sum + seed);
        // The ends hold the graph; backward consumes it.
        drop(ends);
        // Without a seed nothing downstream uses a differentiable output.
        let mut gradients = seed.map(|seed| seed.backward());
        if let (Some(gradients), Some(module)) = (&mut gradients, &self.module) {
            let of_layer = match &self.computing {
                Some(computing) => {
                    cast_gradients(module, GradientsParams::from_module(gradients, computing))
                }
                None => GradientsParams::from_module(gradients, module),
            };
            self.gradients.accumulate(module, of_layer);
        }
        let mut take = |leaves: Vec<Box<dyn Part>>| -> Vec<Option<Box<dyn Part>>> {
            leaves.iter().map(|leaf| leaf.take_gradient(gradients.as_mut()?)).collect()
        };
        let inputs = take(inputs);
        let popped = popped.into_iter();
        let popped = popped.map(|(name, leaves)| (name, Packet::gradients(take(leaves))));
        Ok(Backwarded { inputs, popped: popped.collect() })
    }

    fn complete(&mut self, carried: Option<f64>) {
        let step = self.gradients.grads();
        self.complete = match (&self.module, &self.carried, carried) {
            (Some(module), Some(carried), Some(factor)) => {
                gradients::add(module, (carried, factor), step)
            }
            _ => step,
        };
    }

    fn squared_norm(&self, but: &HashSet<String>) -> f64 {
        let module = self.module.as_ref();
        module.map_or(0.0, |module| gradients::squared_norm(module, &self.complete, but))
    }

    fn gradient(&self, path: &str) -> Option<Vec<f32>> {
        gradients::read(self.module.as_ref()?, &self.complete, path)
    }

    fn set_gradient(&mut self, path: &str, gradient: &[f32]) {
        if let Some(module) = &self.module {
            gradients::write(module, &mut self.complete, path, gradient);
        }
    }

    fn set_parameter(&mut self, path: &str, value: &TensorData) {
        if let Some(module) = self.module.take() {
            self.replace(gradients::with_value(module, path, value));
        }
    }

    fn take_gradients(&mut self, averaging: Averaging) -> BTreeMap<String, TensorData> {
        let Ok(mut gradients) = self.averaged(averaging) else { return BTreeMap::new() };
        let mut reader =
            ReadGradients { path: Vec::new(), gradients: &mut gradients, read: BTreeMap::new() };
        if let Some(module) = &self.module {
            module.visit(&mut reader);
        }
        reader.read
    }

    fn carry(&mut self) {
        self.carried = Some(std::mem::take(&mut self.complete));
    }

    fn prepare_update(
        &mut self,
        rate: &ModuleLearningRate,
        averaging: Averaging,
    ) -> Result<(), StageError> {
        let gradients = self.averaged(averaging)?;
        let mut optimizer = self.optimizer.clone();
        let module = optimizer.step(rate.clone(), self.module()?.clone(), gradients);
        self.staged = Some((module, optimizer));
        Ok(())
    }

    fn staged_state_bytes(&self) -> u64 {
        let Some((_, optimizer)) = &self.staged else { return 0 };
        // As it would be saved: the tensors, and a little to name them. Of an optimizer without state
        // only that would be left.
        let record = optimizer.to_record();
        if record.is_empty() {
            return 0;
        }
        record.into_bytes().map_or(0, |bytes| bytes.len() as u64)
    }

    fn commit(
        &mut self,
        rate: &ModuleLearningRate,
        averaging: Averaging,
    ) -> Result<(), StageError> {
        self.carried = None;
        if let Some((module, optimizer)) = self.staged.take() {
            self.optimizer = optimizer;
            self.replace(module);
            return Ok(());
        }
        let gradients = self.averaged(averaging)?;
        // These share the parameters' memory and would keep the update from happening in place.
        self.forget_copies();
        self.module()?;
        if let Some(module) = self.module.take() {
            let module = self.optimizer.step(rate.clone(), module, gradients);
            self.replace(module);
        }
        Ok(())
    }

    fn abandon(&mut self) {
        self.gradients = GradientsAccumulator::new();
        self.complete = GradientsParams::new();
        self.staged = None;
    }

    fn parameters(&self) -> BTreeMap<String, TensorData> {
        self.module.as_ref().map(read_parameters).unwrap_or_default()
    }
}

/// Keeps the path of what is visited in `self.path`.
macro_rules! track_path {
    () => {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
    };
}

pub(crate) use track_path;

/// What a module's float parameters take on the device once more in another type. Those that have it already
/// aren't copied.
fn bytes_of_copies<M: Module>(module: &M, dtype: DType) -> u64 {
    let mut copies = Copies { dtype, bytes: 0 };
    module.visit(&mut copies);
    copies.bytes
}

struct Copies {
    dtype: DType,
    bytes: u64,
}

impl ModuleVisitor for Copies {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.dtype().is_float() && value.dtype() != self.dtype {
            self.bytes += (value.shape().num_elements() * self.dtype.size()) as u64;
        }
    }
}

/// The module's parameters, copied to the host, by path.
pub(crate) fn read_parameters<M: Module>(module: &M) -> BTreeMap<String, TensorData> {
    let mut reader = ReadParameters { path: Vec::new(), read: BTreeMap::new() };
    module.visit(&mut reader);
    reader.read
}

/// Copies parameters to the host by path.
struct ReadParameters {
    path: Vec<String>,
    read: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for ReadParameters {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.read.insert(self.path.join("."), read(param.val().inner()));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.read.insert(self.path.join("."), read(param.val().inner()));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.read.insert(self.path.join("."), read(param.val().inner()));
    }
}

/// Copies gradients to the host by the path of their parameter.
struct ReadGradients<'a> {
    path: Vec<String>,
    gradients: &'a mut GradientsParams,
    read: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for ReadGradients<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.read.insert(self.path.join("."), read(gradient));
        }
    }
}
