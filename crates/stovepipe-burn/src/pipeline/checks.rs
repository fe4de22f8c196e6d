//! The checks of a configuration before anything is made.

use burn::optim::ModuleOptimizer;

use crate::error::build::BuildError;
use crate::loss::scaling::LossScaling;
use crate::model::layer_spec::{LayerFacts, LayerSpec};
use crate::model::replay::Unreplayable;
use crate::parameters::averaging::Clipping;
use crate::pipeline::settings::Settings;

impl Settings {
    /// Refuses settings that can't be met by a model of these layers, whatever the devices.
    pub(crate) fn check(&self, layers: &[LayerSpec]) -> Result<(), BuildError> {
        let named =
            [("allow_unreplayable", &self.allowed), ("full_precision", &self.full_precision)];
        for (method, names) in named {
            let is_unknown = |name: &&String| !layers.iter().any(|layer| *layer.name == ***name);
            if let Some(name) = names.iter().find(is_unknown) {
                let layers = layers.iter().map(|layer| layer.name.to_string()).collect();
                return Err(BuildError::UnknownLayer { method, name: name.clone(), layers });
            }
        }
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
