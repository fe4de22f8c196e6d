//! One layer at work: its module, the tape of each of its forwards, its accumulated gradients and its
//! optimizer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{FloatDType, Tensor, TensorData};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::tape::{Backwarded, Forward, Forwarded, Tape};
use crate::error::StageError;
use crate::layer::Layer;
use crate::layer::context::{LayerContext, SkipValues};
use crate::loss::erasure::scaled;
use crate::parameters::averaging::{Averaging, average};
use crate::parameters::cast::{bytes_of_copies, cast_gradients, cast_parameters};
use crate::parameters::gradients::{add, squared_norm};
use crate::parameters::named::Named;
use crate::parameters::read::{read_gradient, read_parameters, take_gradients};
use crate::parameters::write::{with_value, write_gradient};
use crate::value::boundary::{from_parts, into_parts};
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};

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

    /// The module as forwards of this kind use it.
    fn module_for(&mut self, mode: Forward) -> Result<Named<L>, StageError> {
        let module = self.computing()?;
        Ok(match mode {
            Forward::Taped { .. } => module,
            Forward::Untaped => self.untaped.get_or_insert_with(|| module.no_grad()).clone(),
            Forward::Evaluate => self.evaluating.get_or_insert_with(|| module.valid()).clone(),
        })
    }

    /// Parts in the type that the layer computes in: what comes out of it may be of another, such as that
    /// of a sum in 32 bits.
    fn typed(&self, parts: Vec<Box<dyn Part>>) -> Vec<Box<dyn Part>> {
        match self.compute {
            Some(dtype) => parts.into_iter().map(|part| part.cast(dtype)).collect(),
            None => parts,
        }
    }

    /// Parts as the layer takes them; as leaves, where a gradient is wanted and there is a tape.
    fn enter(
        &self,
        parts: Vec<Box<dyn Part>>,
        mode: Forward,
        wants_gradient: bool,
    ) -> Vec<Box<dyn Part>> {
        let entered = self.typed(parts).into_iter().map(|part| match mode {
            Forward::Taped { .. } if wants_gradient => part.leaf(),
            Forward::Taped { .. } | Forward::Untaped => part.track(),
            Forward::Evaluate => part,
        });
        entered.collect()
    }

    /// Gives the context what the layer may pop, by the names that it uses, and returns the same by the
    /// names in the model.
    fn pop(
        &self,
        context: &mut LayerContext<'_>,
        mode: Forward,
    ) -> BTreeMap<String, Vec<Box<dyn Part>>> {
        let mut popped = BTreeMap::new();
        let mut arrived = std::mem::take(&mut context.popped);
        for (called, name) in &self.names[0] {
            let Some(packet) = arrived.remove(name) else { continue };
            let parts = self.enter(packet.into_values(), mode, true);
            context.popped.insert(called.clone(), Packet::of(copied(&parts)));
            popped.insert(name.clone(), parts);
        }
        popped
    }

    /// Takes what the forward stashed, by the names in the model. Refuses other names than were declared.
    fn take_stashed(
        &self,
        context: &mut LayerContext<'_>,
    ) -> Result<BTreeMap<String, Vec<Box<dyn Part>>>, StageError> {
        let stashed = std::mem::take(&mut context.stashed);
        if !stashed.keys().eq(&self.stashes) {
            return Err(StageError::Stash {
                layer: self.name.to_string(),
                declared: self.stashes.clone(),
                found: stashed.into_keys().collect(),
            });
        }
        let named = stashed.into_iter().map(|(called, packet)| {
            (self.names[1][&called].clone(), self.typed(packet.into_values()))
        });
        Ok(named.collect())
    }

    /// Refuses gradients that haven't the shapes of what they are for.
    fn check_shapes(
        &self,
        ends: &[Box<dyn Part>],
        gradients: &[Option<Box<dyn Part>>],
    ) -> Result<(), StageError> {
        for (end, gradient) in ends.iter().zip(gradients) {
            let gradient = gradient.as_ref().filter(|gradient| gradient.shape() != end.shape());
            if let Some(gradient) = gradient {
                return Err(StageError::Shape {
                    layer: self.name.to_string(),
                    output: end.describe(),
                    gradient: gradient.describe(),
                });
            }
        }
        Ok(())
    }

    /// Takes the complete gradients.
    fn averaged(&mut self, averaging: Averaging) -> Result<GradientsParams, StageError> {
        let mut complete = std::mem::take(&mut self.complete);
        Ok(average(self.module()?, &mut complete, averaging))
    }

    fn forget_copies(&mut self) {
        (self.computing, self.untaped, self.evaluating) = (None, None, None);
    }

    fn replace(&mut self, module: Named<L>) {
        self.module = Some(module);
        self.forget_copies();
    }
}

/// The same values off the tape.
fn detached(parts: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    parts.iter().map(|part| part.clone_box().detach_to(None)).collect()
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
        context.compute = self.compute;
        let wants_gradient = matches!(mode, Forward::Taped { input_gradient: true });
        let inputs = self.enter(inputs, mode, wants_gradient);
        let leaves = copied(&inputs);
        let popped = self.pop(context, mode);
        let input = from_parts::<L::Input>(inputs)
            .map_err(|source| StageError::Boundary { layer: self.name.to_string(), source })?;
        let module = self.module_for(mode)?;
        let outputs = self.typed(into_parts(module.inner().forward(input, context)));
        let stashed = self.take_stashed(context)?;
        let packets =
            stashed.iter().map(|(name, parts)| (name.clone(), Packet::of(detached(parts))));
        let packets = packets.collect();
        let added = context.take_losses();
        let loss = added.clone().map(|loss| match mode {
            Forward::Taped { .. } | Forward::Untaped if loss.device().is_autodiff() => loss.inner(),
            _ => loss,
        });
        let observations = context.take_observations();
        let values = detached(&outputs);
        let tape = match mode {
            Forward::Taped { .. } => {
                Some(Tape { inputs: leaves, outputs, loss: added, popped, stashed })
            }
            Forward::Untaped | Forward::Evaluate => None,
        };
        Ok(Forwarded { outputs: values, tape, loss, stashed: packets, observations })
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
        self.check_shapes(&ends, &all)?;
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
            (Some(module), Some(carried), Some(factor)) => add(module, (carried, factor), step),
            _ => step,
        };
    }

    fn squared_norm(&self, but: &HashSet<String>) -> f64 {
        let module = self.module.as_ref();
        module.map_or(0.0, |module| squared_norm(module, &self.complete, but))
    }

    fn gradient(&self, path: &str) -> Option<Vec<f32>> {
        read_gradient(self.module.as_ref()?, &self.complete, path)
    }

    fn set_gradient(&mut self, path: &str, gradient: &[f32]) {
        if let Some(module) = &self.module {
            write_gradient(module, &mut self.complete, path, gradient);
        }
    }

    fn set_parameter(&mut self, path: &str, value: &TensorData) {
        if let Some(module) = self.module.take() {
            self.replace(with_value(module, path, value));
        }
    }

    fn take_gradients(&mut self, averaging: Averaging) -> BTreeMap<String, TensorData> {
        let Ok(mut gradients) = self.averaged(averaging) else { return BTreeMap::new() };
        let module = self.module.as_ref();
        module.map(|module| take_gradients(module, &mut gradients)).unwrap_or_default()
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
