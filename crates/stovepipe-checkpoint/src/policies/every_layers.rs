//! Every layers: segments of a fixed number of layers.

use stovepipe_schedule::Retention;

use super::segments::{by_stage, segments_of};
use crate::error::PolicyError;
use crate::named::{NamedPolicy, PolicyFacts};
use crate::policy::{CheckpointPolicy, Layout};

/// Keeps the input of every n-th layer of a stage, and recomputes the n layers behind it in one go.
///
/// With as many layers as a stage has it is [`Always`](crate::Always); with 1, every layer is
/// recomputed from its own input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EveryLayers(usize);

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "every-layers",
    form: "every-layers=N",
    example: "every-layers=4",
    summary: "Keeps the input of every N-th layer of a stage.",
    tuned: false,
    make,
};

fn make(argument: &str, _: &PolicyFacts) -> Result<Box<dyn CheckpointPolicy>, PolicyError> {
    let layers = argument.parse().ok().filter(|layers| *layers > 0);
    Ok(Box::new(EveryLayers::new(layers.ok_or_else(|| NAMED.refuse(argument))?)))
}

impl EveryLayers {
    /// Segments of `layers` layers, at least 1; the last one of a stage may be shorter.
    #[must_use]
    pub fn new(layers: usize) -> Self {
        Self(layers.max(1))
    }
}

impl CheckpointPolicy for EveryLayers {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        by_stage(layout, |_, layers| segments_of(layers, self.0))
    }
}
