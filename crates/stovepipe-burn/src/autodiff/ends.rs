//! Values as a layer takes and leaves them: inputs, skip values, and the gradients of both.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::FloatDType;

use crate::autodiff::erased_layer::SkipNames;
use crate::autodiff::tape::Forward;
use crate::error::stage::StageError;
use crate::layer::context::LayerContext;
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};

/// The ends of a layer: what it is called, and the names and types of what it takes and leaves.
pub(crate) struct Ends {
    pub(crate) name: Arc<str>,
    /// The names of the skip values that the layer stashes, as it calls them itself, sorted.
    pub(crate) stashes: Vec<String>,
    /// The names of its skip values in the model, by its own.
    pub(crate) names: SkipNames,
    /// The type that forwards compute in, if it isn't the parameters' own.
    pub(crate) compute: Option<FloatDType>,
}

impl Ends {
    /// Returns parts as the layer takes them: in the type that it computes in, and as leaves
    /// where a gradient is wanted and there is a tape.
    pub(crate) fn enter(
        &self,
        parts: Vec<Box<dyn Part>>,
        mode: Forward,
        wants_gradient: bool,
    ) -> Vec<Box<dyn Part>> {
        let typed = parts.into_iter().map(|part| match self.compute {
            Some(dtype) => part.cast(dtype),
            None => part,
        });
        let entered = typed.map(|part| match mode {
            Forward::Taped { .. } if wants_gradient => part.leaf(),
            Forward::Taped { .. } | Forward::Untaped => part.track(),
            Forward::Evaluate => part,
        });
        entered.collect()
    }

    /// Gives the context what the layer may pop, by the layer's own names.
    ///
    /// Returns the same parts by their names in the model.
    pub(crate) fn pop(
        &self,
        context: &mut LayerContext<'_>,
        mode: Forward,
    ) -> BTreeMap<String, Vec<Box<dyn Part>>> {
        let mut popped = BTreeMap::new();
        let mut arrived = std::mem::take(&mut context.popped);
        for (called, name) in &self.names.popped {
            let Some(packet) = arrived.remove(name) else { continue };
            let wants_gradient = !self.names.constants.contains(name);
            let parts = self.enter(packet.into_values(), mode, wants_gradient);
            context.popped.insert(called.clone(), Packet::of(copied(&parts)));
            popped.insert(name.clone(), parts);
        }
        popped
    }

    /// Takes the skip values that the forward stashed, by their names in the model.
    ///
    /// Fails if the layer stashed under other names than it declared.
    pub(crate) fn take_stashed(
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
        let named = stashed
            .into_iter()
            .map(|(called, packet)| (self.names.stashed[&called].clone(), packet.into_values()));
        Ok(named.collect())
    }

    /// Refuses a gradient whose shape differs from that of the output or skip value that it is
    /// for.
    pub(crate) fn check_shapes(
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
}

/// Copies values off the tape.
pub(crate) fn detached(parts: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    parts.iter().map(|part| part.clone_box().detach_to(None)).collect()
}
