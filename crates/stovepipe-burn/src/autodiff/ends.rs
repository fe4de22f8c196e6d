//! Values as a layer takes and leaves them: inputs, skip values, and the gradients of both.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::FloatDType;

use crate::autodiff::erased_layer::SkipNames;
use crate::autodiff::tape::{Entry, Forward};
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
    /// Returns parts as the layer takes them: in the type that it computes in. Returns the leaves
    /// whose gradients are wanted besides.
    pub(crate) fn enter(&self, parts: Vec<Box<dyn Part>>, mode: Forward) -> Entered {
        let typed = parts.into_iter().map(|part| match self.compute {
            Some(dtype) => part.cast(dtype),
            None => part,
        });
        match mode {
            Forward::Taped(Entry::Leaves) => {
                let leaves: Vec<_> = typed.map(|part| part.leaf()).collect();
                let values = leaves.iter().map(|leaf| leaf.clone_box().lift()).collect();
                Entered { leaves, values }
            }
            Forward::Taped(Entry::Constants) | Forward::Untaped => {
                let values: Vec<_> = typed.map(|part| part.track()).collect();
                Entered { leaves: copied(&values), values }
            }
            Forward::Taped(Entry::Continued) | Forward::Evaluate => {
                Entered { leaves: Vec::new(), values: typed.collect() }
            }
        }
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
            let mode = match mode {
                Forward::Taped(_) if self.names.constants.contains(name) => {
                    Forward::Taped(Entry::Constants)
                }
                Forward::Taped(_) => Forward::Taped(Entry::Leaves),
                other => other,
            };
            let Entered { leaves, values } = self.enter(packet.into_values(), mode);
            context.popped.insert(called.clone(), Packet::of(values));
            popped.insert(name.clone(), leaves);
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
}

/// Values that have entered a layer.
pub(crate) struct Entered {
    /// Those whose gradients can be asked for.
    pub(crate) leaves: Vec<Box<dyn Part>>,
    /// The values that the layer is given.
    pub(crate) values: Vec<Box<dyn Part>>,
}

/// Copies values off the tape.
pub(crate) fn detached(parts: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    parts.iter().map(|part| part.clone_box().detach_to(None)).collect()
}
