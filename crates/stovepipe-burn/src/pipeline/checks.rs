//! The checks of a configuration before anything is made.

use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};

use crate::error::BuildError;
use crate::loss::scaling::LossScaling;
use crate::model::layer_spec::{LayerFacts, LayerSpec};
use crate::model::replay::Unreplayable;
use crate::parameters::averaging::Clipping;
use crate::pipeline::settings::Settings;

impl Settings {
    /// Refuses settings that can't be met, whatever the model and the devices.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if self.optimizer.as_ref().is_some_and(ModuleOptimizer::has_gradient_clipping) {
            return Err(BuildError::OptimizerClips);
        }
        if let Some(limit) = self.clipping.map(Clipping::limit)
            && (limit <= 0.0 || limit.is_nan())
        {
            return Err(BuildError::Clipping { limit });
        }
        if let Some(scale) = self.loss_scaling.map(LossScaling::scale)
            && (scale <= 0.0 || !scale.is_finite())
        {
            return Err(BuildError::LossScale { scale });
        }
        Ok(())
    }
}

/// Refuses a type to compute in that these devices or layers can't use.
pub(crate) fn check_compute_dtype(
    dtype: Option<FloatDType>,
    devices: &[Device],
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Result<(), BuildError> {
    let Some(dtype) = dtype else { return Ok(()) };
    supports(devices, dtype)?;
    let has_burns_batch_norm =
        |facts: &LayerFacts| facts.unreplayable.iter().any(|found| found.module == "BatchNorm");
    match layer_facts.iter().position(has_burns_batch_norm) {
        Some(place) => {
            let layer = &layers[place].name;
            let reason = format!(
                "the running statistics of Burn's BatchNorm in layer `{layer}` would be cast for \
                 good: use stovepipe's, which converts from it"
            );
            Err(BuildError::ComputeDtype { dtype, reason })
        }
        None => Ok(()),
    }
}

/// Refuses a type that one of the devices can't compute in, or that isn't for mixed precision.
fn supports(devices: &[Device], dtype: FloatDType) -> Result<(), BuildError> {
    let refuse = |reason| Err(BuildError::ComputeDtype { dtype, reason });
    if !matches!(dtype, FloatDType::F16 | FloatDType::BF16 | FloatDType::F32) {
        return refuse("only F16, BF16 and F32 are for mixed precision".to_owned());
    }
    match devices.iter().find(|device| !device.supports_dtype(dtype)) {
        Some(device) => refuse(format!("{device:?} doesn't compute in it")),
        None => Ok(()),
    }
}

/// Finds the layers whose forward can't be run twice, except those that are allowed to.
pub(crate) fn unreplayable_layers(
    allowed: &[String],
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Vec<(usize, String, Unreplayable)> {
    let layers = layers.iter().zip(layer_facts).enumerate();
    let found = layers.filter_map(|(index, (layer, facts))| {
        let is_allowed = allowed.iter().any(|name| **name == *layer.name);
        let first = facts.unreplayable.first().filter(|_| !is_allowed)?;
        Some((index, layer.name.to_string(), first.clone()))
    });
    found.collect()
}
