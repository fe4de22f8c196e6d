//! One layer at work: its module, the tape of each of its forwards, its accumulated gradients
//! and its optimizer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{FloatDType, Gradients, Tensor, TensorData};

use crate::autodiff::ends::{Ends, Entered, detached};
use crate::autodiff::erased_layer::{ErasedLayer, SkipNames};
use crate::autodiff::tape::{Forward, Forwarded, Recorded, Tape};
use crate::error::stage::StageError;
use crate::layer::Layer;
use crate::layer::context::LayerContext;
use crate::parameters::averaging::{Averaging, average};
use crate::parameters::cast::{bytes_of_copies, cast_gradients, cast_parameters};
use crate::parameters::gradients::{
    add, gradient_at, path_of_not_finite, paths_without, set_gradient_at, squares,
};
use crate::parameters::leaves::fresh_leaves;
use crate::parameters::named::Named;
use crate::parameters::read::{read_parameters, take_gradients};
use crate::parameters::write::with_value;
use crate::value::boundary::{from_parts, into_parts};
use crate::value::packet::Packet;
use crate::value::part::Part;

/// A layer at work: its module, its gradients and its optimizer.
pub(crate) struct TrainedLayer<L: Layer> {
    ends: Ends,
    /// The names of the skip values that it pops, as the model calls them.
    pops: Vec<String>,
    /// The module; missing only while an update runs, and after one that panicked.
    module: Option<Named<L>>,
    /// The module in the type that forwards compute in, if that isn't the type of the
    /// parameters. Made once for each update, when it is first needed.
    computing: Option<Named<L>>,
    /// The module that forwards without a tape use; made likewise.
    untaped: Option<Named<L>>,
    /// The module that evaluations use; made likewise.
    evaluating: Option<Named<L>>,
    /// The gradients of the step that runs.
    gradients: GradientsAccumulator<Named<L>>,
    /// The gradients of the steps since the last update.
    carried: Option<GradientsParams>,
    /// All gradients, once the step's are complete.
    complete: GradientsParams,
    optimizer: ModuleOptimizer,
    /// The module and the optimizer after the prepared update, if one is prepared.
    prepared: Option<(Named<L>, ModuleOptimizer)>,
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
            ends: Ends { name, names: SkipNames::own(&pops, &stashes), stashes, compute },
            pops,
            module: Some(module),
            computing: None,
            untaped: None,
            evaluating: None,
            gradients: GradientsAccumulator::new(),
            carried: None,
            complete: GradientsParams::new(),
            optimizer,
            prepared: None,
        }
    }

    /// Returns the module; an error after an update that panicked.
    fn module(&self) -> Result<&Named<L>, StageError> {
        self.module.as_ref().ok_or_else(|| StageError::Order {
            layer: self.ends.name.to_string(),
            problem: "an update failed half-way and left no parameters",
        })
    }

    /// Returns the module in the type that forwards compute in.
    fn computing(&mut self) -> Result<Named<L>, StageError> {
        let module = self.module()?.clone();
        let Some(dtype) = self.ends.compute else { return Ok(module) };
        let cast = || {
            let cast = |layer: L| layer.clone().cast_constants(dtype).unwrap_or(layer);
            cast_parameters(module, dtype).with_inner(cast)
        };
        Ok(self.computing.get_or_insert_with(cast).clone())
    }

    /// Returns the module that forwards of this kind use.
    fn module_for(&mut self, mode: Forward) -> Result<Named<L>, StageError> {
        let module = self.computing()?;
        Ok(match mode {
            Forward::Taped(_) => fresh_leaves(module),
            Forward::Untaped => self.untaped.get_or_insert_with(|| module.no_grad()).clone(),
            Forward::Evaluate => self.evaluating.get_or_insert_with(|| module.valid()).clone(),
        })
    }

    /// Takes the complete gradients and averages them.
    fn averaged(&mut self, averaging: Averaging) -> Result<GradientsParams, StageError> {
        let mut complete = std::mem::take(&mut self.complete);
        Ok(average(self.module()?, &mut complete, averaging))
    }

    /// Forgets the copies of the module that forwards use.
    fn forget_copies(&mut self) {
        (self.computing, self.untaped, self.evaluating) = (None, None, None);
    }

    /// Puts a new module in place and forgets the copies of the old one.
    fn replace(&mut self, module: Named<L>) {
        self.module = Some(module);
        self.forget_copies();
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}

impl<L: Layer> ErasedLayer for TrainedLayer<L> {
    fn name(&self) -> &str {
        &self.ends.name
    }

    fn pops(&self) -> &[String] {
        &self.pops
    }

    fn name_skips(&mut self, names: SkipNames) {
        self.pops = names.popped.values().cloned().collect();
        self.ends.names = names;
    }

    fn copy_bytes(&self) -> u64 {
        match (&self.computing, &self.module, self.ends.compute) {
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
        context.compute = self.ends.compute;
        let Entered { leaves, values } = self.ends.enter(inputs, mode);
        let popped = self.ends.pop(context, mode);
        let is_lifted =
            leaves.iter().chain(popped.values().flatten()).any(|leaf| leaf.is_tracked());
        let input = from_parts::<L::Input>(values)
            .map_err(|source| StageError::Boundary { layer: self.ends.name.to_string(), source })?;
        let module = self.module_for(mode)?;
        let outputs = into_parts(module.inner().forward(input, context));
        context.check()?;
        let stashed = self.ends.take_stashed(context)?;
        let packets =
            stashed.iter().map(|(name, parts)| (name.clone(), Packet::of(detached(parts))));
        let packets = packets.collect();
        let added = context.take_losses();
        let loss = added.clone().map(|loss| match mode {
            Forward::Taped(_) | Forward::Untaped if loss.device().is_autodiff() => loss.inner(),
            _ => loss,
        });
        let observations = context.take_observations();
        let Forward::Taped(_) = mode else {
            let outputs = detached(&outputs);
            return Ok(Forwarded { outputs, tape: None, loss, stashed: packets, observations });
        };
        let tape = Tape {
            inputs: leaves,
            modules: vec![Box::new(module)],
            outputs,
            loss: added,
            is_lifted,
            popped,
            stashed,
        };
        let (outputs, tape) = (Vec::new(), Some(tape));
        Ok(Forwarded { outputs, tape, loss, stashed: packets, observations })
    }

    fn accumulate(&mut self, recorded: Recorded, gradients: &mut Gradients) {
        let (Ok(recorded), Some(module)) = (recorded.downcast::<Named<L>>(), &self.module) else {
            return;
        };
        let of_layer = GradientsParams::from_module(gradients, &*recorded);
        let of_layer = match self.ends.compute {
            Some(_) => cast_gradients(module, of_layer),
            None => of_layer,
        };
        self.gradients.accumulate(module, of_layer);
    }

    fn complete(&mut self, carried: Option<f64>) {
        let step = self.gradients.grads();
        self.complete = match (&self.module, &self.carried, carried) {
            (Some(module), Some(carried), Some(factor)) => add(module, (carried, factor), step),
            _ => step,
        };
    }

    fn squares(&self, except: &HashSet<String>) -> Vec<Tensor<1>> {
        let module = self.module.as_ref();
        module.map(|module| squares(module, &self.complete, except)).unwrap_or_default()
    }

    fn gradient_that_is_not_finite(&mut self) -> Option<String> {
        let module = self.module.as_ref()?;
        let step = self.gradients.grads();
        let found = path_of_not_finite(module, &step);
        self.gradients.accumulate(module, step);
        found
    }

    fn without_gradient(&self) -> Vec<String> {
        let module = self.module.as_ref();
        module.map(|module| paths_without(module, &self.complete)).unwrap_or_default()
    }

    fn gradient(&self, path: &str) -> Option<Box<dyn Part>> {
        gradient_at(self.module.as_ref()?, &self.complete, path)
    }

    fn set_gradient(&mut self, path: &str, gradient: Box<dyn Part>) {
        if let Some(module) = &self.module {
            set_gradient_at(module, &mut self.complete, path, gradient);
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
        self.prepared = Some((module, optimizer));
        Ok(())
    }

    fn prepared_state_bytes(&self) -> u64 {
        let Some((_, optimizer)) = &self.prepared else { return 0 };
        // The size of the state as it would be saved: the tensors, and a little to name them.
        // Of an optimizer without state only the names would be left.
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
        if let Some((module, optimizer)) = self.prepared.take() {
            self.optimizer = optimizer;
            self.replace(module);
            return Ok(());
        }
        let gradients = self.averaged(averaging)?;
        // The copies share the memory of the parameters, which would keep the update from
        // happening in place.
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
        self.prepared = None;
    }

    fn parameters(&self) -> BTreeMap<String, TensorData> {
        self.module.as_ref().map(read_parameters).unwrap_or_default()
    }
}
