//! A layer that isn't made yet: the function that makes it, and the facts known before.

use std::sync::{Arc, OnceLock};

use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::model::replay::Unreplayable;
use crate::parameters::find::FloatParameter;

/// Makes a layer and hides its type.
pub(crate) type Make = dyn Fn(&MakeContext<'_>) -> Box<dyn ErasedLayer> + Send + Sync;

/// Looks at a layer without allocating its parameters.
pub(crate) type Look = dyn Fn() -> LayerFacts + Send + Sync;

/// One layer of a model that hasn't been built yet.
pub(crate) struct LayerSpec {
    pub(crate) name: Arc<str>,
    pub(crate) make: Box<Make>,
    look: Box<Look>,
    /// The facts, once it has been looked at.
    facts: OnceLock<LayerFacts>,
}

impl LayerSpec {
    pub(crate) fn new(name: Arc<str>, make: Box<Make>, look: Box<Look>) -> Self {
        Self { name, make, look, facts: OnceLock::new() }
    }

    /// Returns the facts. Looks at the layer once, for which its function is called.
    pub(crate) fn facts(&self) -> &LayerFacts {
        self.facts.get_or_init(|| (self.look)())
    }
}

/// The circumstances in which a layer is made.
pub(crate) struct MakeContext<'a> {
    pub(crate) seed: u64,
    pub(crate) device: &'a Device,
    pub(crate) optimizer: &'a ModuleOptimizer,
    /// The type that forwards compute in, if it isn't the parameters' own.
    pub(crate) compute: Option<FloatDType>,
}

/// The facts about a layer that are known before it runs.
#[derive(Debug, Clone)]
pub(crate) struct LayerFacts {
    /// The number of its parameters.
    pub(crate) parameters: usize,
    /// The floating-point operations that it states.
    pub(crate) flops: Option<f64>,
    /// The modules in it that recomputation would change.
    pub(crate) unreplayable: Vec<Unreplayable>,
    /// Its parameters that are floats.
    pub(crate) floats: Vec<FloatParameter>,
    /// The paths in it of all its parameters.
    pub(crate) paths: Vec<String>,
    /// The paths in it of floats that aren't parameters.
    pub(crate) constants: Vec<String>,
    /// Says whether it casts its constants by itself.
    pub(crate) casts_constants: bool,
    /// Says whether it wants to compute in 32 bits.
    pub(crate) full_precision: bool,
    /// The names of the skip values that it stashes, as it calls them itself.
    pub(crate) stashes: Vec<String>,
    /// The names of those that it pops.
    pub(crate) pops: Vec<String>,
}

impl LayerFacts {
    /// Returns whether it has a parameter that is to be trained.
    pub(crate) fn trains(&self) -> bool {
        self.floats.iter().any(|float| float.is_trainable)
    }
}

/// Returns the number of the first layer with something to train.
pub(crate) fn first_trained(layer_facts: &[LayerFacts]) -> Option<usize> {
    layer_facts.iter().position(LayerFacts::trains)
}
