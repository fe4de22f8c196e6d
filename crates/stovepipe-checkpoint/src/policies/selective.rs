//! Selective: the layers that somebody chose.

use std::collections::BTreeSet;

use stovepipe_schedule::{Retention, Stage};

use super::segments::by_stage;
use crate::error::PolicyError;
use crate::named::{NamedPolicy, PolicyFacts};
use crate::policy::{CheckpointPolicy, Layout};

/// Recomputes these layers, each from its own input, and keeps what all others compute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selective {
    layers: BTreeSet<usize>,
}

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "selective",
    form: "selective=L,…",
    example: "selective=3,7",
    summary: "Keeps everything except what these layers compute, counted from the model's first, 0.",
    tuned: false,
    make,
};

fn make(argument: &str, _: &PolicyFacts) -> Result<Box<dyn CheckpointPolicy>, PolicyError> {
    let layers = argument.split(',').map(|layer| layer.trim().parse());
    let layers: BTreeSet<usize> =
        layers.collect::<Result<_, _>>().map_err(|_| NAMED.refuse(argument))?;
    Ok(Box::new(Selective { layers }))
}

impl Selective {
    /// The layers that are recomputed, counted from the model's first.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = usize>) -> Self {
        Self { layers: layers.into_iter().collect() }
    }
}

impl CheckpointPolicy for Selective {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let total: usize =
            Stage::first(layout.plan().stages()).map(|stage| layout.layers(stage)).sum();
        if let Some(&layer) = self.layers.last().filter(|&&layer| layer >= total) {
            return Err(PolicyError::Layer { layer, layers: total });
        }
        let mut first = 0;
        by_stage(layout, |_, layers| {
            let start = first;
            first += layers;
            let chosen = self.layers.range(start..first);
            chosen.map(|layer| layer - start..layer - start + 1).collect()
        })
    }
}
