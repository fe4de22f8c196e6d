//! A layer that isn't made yet: how it is made, and what is known of it before.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::model::replay::Unreplayable;
use crate::parameters::floats::FloatParameter;

/// Makes a layer and hides its type.
type Make = dyn Fn(&MakeContext<'_>) -> Box<dyn ErasedLayer> + Send + Sync;

/// Looks at a layer without allocating its parameters.
type Look = dyn Fn() -> LayerFacts + Send + Sync;

/// One layer of a model that hasn't been built yet.
pub(crate) struct LayerSpec {
    pub(crate) name: Arc<str>,
    pub(crate) make: Box<Make>,
    pub(crate) look: Box<Look>,
}

/// What a layer is made with.
pub(crate) struct MakeContext<'a> {
    pub(crate) seed: u64,
    pub(crate) device: &'a Device,
    pub(crate) optimizer: &'a burn::optim::ModuleOptimizer,
    /// What forwards compute in, if not in the parameters' own type.
    pub(crate) compute: Option<FloatDType>,
}

/// What a layer is known to cost before it has run.
pub(crate) struct LayerFacts {
    pub(crate) parameters: usize,
    pub(crate) flops: Option<f64>,
    pub(crate) unreplayable: Vec<Unreplayable>,
    pub(crate) floats: Vec<FloatParameter>,
    pub(crate) stashes: Vec<String>,
    pub(crate) pops: Vec<String>,
}
