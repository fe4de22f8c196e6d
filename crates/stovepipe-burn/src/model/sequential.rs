//! Models: sequences of named layers, each given as a function of its device.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{Device, FloatDType};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::trained_layer::TrainedLayer;
use crate::error::build::BuildError;
use crate::layer::Layer;
use crate::layer::apply::{Apply, Stateless};
use crate::layer::context::LayerContext;
use crate::model::constants::constants;
use crate::model::layer_spec::{LayerFacts, LayerSpec, MakeContext};
use crate::model::paths::check_paths;
use crate::model::replay::unreplayable;
use crate::parameters::find::find_parameters;
use crate::parameters::generator::LentGenerator;
use crate::parameters::initialize::{initialize, look_at};
use crate::parameters::named::Named;
use crate::value::boundary::Boundary;

/// A model: named layers, one after the other.
///
/// `In` is the type that the first layer takes, `Out` the type that the last one returns. A
/// layer that doesn't fit the one before it doesn't compile.
///
/// A layer is given as a function of the device. The function is called when the pipeline is
/// built, and only for the stages that this process owns: the whole model never sits on one
/// device.
///
/// ```
/// use burn::nn::{EmbeddingConfig, LinearConfig};
/// use burn::tensor::{Int, Tensor, activation::relu};
/// use stovepipe_burn::Sequential;
///
/// let model = Sequential::<Tensor<2, Int>>::new()
///     .push_module("embed", |d| EmbeddingConfig::new(64, 32).init(d), |m, ids| m.forward(ids))
///     .push_fn("relu", |x: Tensor<3>| relu(x))
///     .push_module("head", |d| LinearConfig::new(32, 64).init(d), |m, x| m.forward(x));
/// assert_eq!(model.names(), ["embed", "relu", "head"]);
/// ```
///
/// ```compile_fail
/// # use burn::nn::LinearConfig;
/// # use burn::tensor::{Int, Tensor};
/// # use stovepipe_burn::Sequential;
/// // Token ids don't go into a linear layer.
/// let model = Sequential::<Tensor<2, Int>>::new()
///     .push_module("head", |d| LinearConfig::new(32, 64).init(d), |m, x: Tensor<3>| m.forward(x));
/// ```
pub struct Sequential<In, Out = In> {
    pub(crate) layers: Vec<LayerSpec>,
    /// The paths of tied parameters, a list for each.
    pub(crate) ties: Vec<Vec<String>>,
    types: PhantomData<fn(In) -> Out>,
}

impl<In: Boundary> Sequential<In, In> {
    /// Makes a model without layers, which takes `In`.
    #[must_use]
    pub fn new() -> Self {
        Self { layers: Vec::new(), ties: Vec::new(), types: PhantomData }
    }
}

impl<In: Boundary> Default for Sequential<In, In> {
    fn default() -> Self {
        Self::new()
    }
}

impl<In: Boundary, Out: Boundary> Sequential<In, Out> {
    /// Adds a layer.
    ///
    /// `name` must be unique in the model: it stands in errors and in the paths of the layer's
    /// parameters, and the seed and the parameters' ids derive from it.
    ///
    /// `init` makes the layer on a device. It is called:
    ///
    /// - once in every process, to look at the layer: its shapes, what trains, what it stashes.
    ///   Parameters that aren't initialized yet, as in Burn's modules, aren't for that;
    /// - once more by the process that owns the layer, unless nothing of what was looked at had
    ///   been made or drawn, so that it can be taken;
    /// - once more by that process if the layer draws from Burn's generator, which shows that no
    ///   other thread has drawn meanwhile; and again while one does.
    ///
    /// [`Builder::profile`](crate::Builder::profile) and
    /// [`Builder::rehearse`](crate::Builder::rehearse) make layers in the same way, and share the
    /// first look. A process makes the first layer of a [tied](Self::tie) parameter for its value
    /// if it owns another one.
    #[must_use]
    pub fn push<L>(
        mut self,
        name: impl Into<String>,
        init: impl Fn(&Device) -> L + Send + Sync + 'static,
    ) -> Sequential<In, L::Output>
    where
        L: Layer<Input = Out>,
    {
        let name: Arc<str> = name.into().into();
        let init = Arc::new(init);
        let init_to_look_at = Arc::clone(&init);
        // The layer that was looked at, if nothing of it has been made yet: Burn's layers put
        // initializing off.
        let seen = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&seen);
        let look = Box::new(move || {
            let (layer, drew_nothing) = look_at(|host| init_to_look_at(host));
            let parameters = find_parameters(&layer);
            let facts = LayerFacts {
                parameters: layer.num_params(),
                flops: layer.flops(),
                constants: constants(&layer),
                casts_constants: layer.clone().cast_constants(FloatDType::F32).is_some(),
                full_precision: layer.full_precision(),
                unreplayable: unreplayable(&layer),
                floats: parameters.floats,
                stashes: layer.stashes(),
                pops: layer.pops(),
                paths: parameters.paths,
            };
            if drew_nothing && !parameters.are_initialized {
                *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(layer);
            }
            facts
        });
        let layer_name = Arc::clone(&name);
        let make = Box::new(move |context: &MakeContext<'_>| -> Box<dyn ErasedLayer> {
            let named = |layer: L| Named::new(Arc::clone(&layer_name), layer);
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take().map(named);
            let MakeContext { seed, device, .. } = *context;
            let module = initialize(seed, &layer_name, device, seen, |host| named(init(host)));
            let (name, optimizer) = (Arc::clone(&layer_name), context.optimizer.clone());
            Box::new(TrainedLayer::new(name, module, optimizer, context.compute))
        });
        self.layers.push(LayerSpec::new(name, make, look));
        Sequential { layers: self.layers, ties: self.ties, types: PhantomData }
    }

    /// Adds a Burn module that isn't a [`Layer`], with the function that runs it.
    #[must_use]
    pub fn push_module<M, O, F>(
        self,
        name: impl Into<String>,
        init: impl Fn(&Device) -> M + Send + Sync + 'static,
        forward: F,
    ) -> Sequential<In, O>
    where
        M: Module + 'static,
        O: Boundary,
        F: Fn(&M, Out) -> O + Send + Sync + 'static,
    {
        let forward = Arc::new(move |module: &M, input: Out, _: &mut LayerContext<'_>| {
            forward(module, input)
        });
        self.push(name, move |device| Apply::new(init(device), Arc::clone(&forward)))
    }

    /// Adds a layer without parameters.
    #[must_use]
    pub fn push_fn<O, F>(self, name: impl Into<String>, forward: F) -> Sequential<In, O>
    where
        O: Boundary,
        F: Fn(Out) -> O + Send + Sync + 'static,
    {
        self.push_module(name, |_| Stateless, move |_: &Stateless, input| forward(input))
    }

    /// Adds a layer without parameters that looks at its [`LayerContext`], such as dropout.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use stovepipe_burn::Sequential;
    ///
    /// let model = Sequential::<Tensor<2>>::new()
    ///     .push_fn_with_context("dropout", |x: Tensor<2>, context| context.dropout(x, 0.1));
    /// ```
    #[must_use]
    pub fn push_fn_with_context<O, F>(
        self,
        name: impl Into<String>,
        forward: F,
    ) -> Sequential<In, O>
    where
        O: Boundary,
        F: Fn(Out, &mut LayerContext<'_>) -> O + Send + Sync + 'static,
    {
        let forward = Arc::new(move |_: &Stateless, input: Out, context: &mut LayerContext<'_>| {
            forward(input, context)
        });
        self.push(name, move |_| Apply::new(Stateless, Arc::clone(&forward)))
    }

    /// Adds `count` layers of one type, named `name.0`, `name.1` and so on.
    #[must_use]
    pub fn repeat<L>(
        mut self,
        name: &str,
        count: usize,
        init: impl Fn(&Device) -> L + Send + Sync + 'static,
    ) -> Self
    where
        L: Layer<Input = Out, Output = Out>,
    {
        let init = Arc::new(init);
        for index in 0..count {
            let init = Arc::clone(&init);
            self = self.push(format!("{name}.{index}"), move |device| init(device));
        }
        self
    }

    /// Makes one parameter of several, given by their paths in the model, such as
    /// `embed.weight` and `head.weight`.
    ///
    /// They must have the same shape. All start with the value of the first layer's. Each is
    /// updated with the sum of all their gradients, so that they stay equal on whatever stages
    /// they are. The parameter goes by the path of its first layer, and counts once where
    /// gradients are clipped.
    ///
    /// An optimizer with parameter groups must treat all these paths alike.
    #[must_use]
    pub fn tie<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.ties.push(paths.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Returns whether there is no layer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns the layers' names in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.layers.iter().map(|layer| layer.name.to_string()).collect()
    }

    /// Returns the number of parameters of each layer, without allocating them.
    #[must_use]
    pub fn parameter_counts(&self) -> Vec<usize> {
        let _generator = LentGenerator::take();
        self.layers.iter().map(|layer| layer.facts().parameters).collect()
    }

    /// Looks at each layer, and refuses a model that can't be trained.
    pub(crate) fn check(&self) -> Result<Vec<LayerFacts>, BuildError> {
        if self.is_empty() {
            return Err(BuildError::NoLayers);
        }
        let mut names = HashSet::new();
        if let Some(layer) = self.layers.iter().find(|layer| !names.insert(&layer.name)) {
            return Err(BuildError::NameTwice { name: layer.name.to_string() });
        }
        let layer_facts: Vec<LayerFacts> =
            self.layers.iter().map(|layer| layer.facts().clone()).collect();
        check_paths(&self.layers, &layer_facts, &self.ties)?;
        Ok(layer_facts)
    }
}
