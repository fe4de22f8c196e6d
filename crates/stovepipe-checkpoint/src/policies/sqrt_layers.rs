//! Square root: segments as long as there are segments.

use stovepipe_schedule::Retention;

use super::segments::{by_stage, segments_of};
use crate::error::PolicyError;
use crate::named::NamedPolicy;
use crate::policy::{CheckpointPolicy, Layout};

/// Cuts a stage of L layers into segments of √L layers (Chen et al., arXiv 1604.06174).
///
/// As much is kept then as is rebuilt at once, for one recomputation of everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SqrtLayers;

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "sqrt-layers",
    form: "sqrt-layers",
    example: "sqrt-layers",
    summary: "Keeps the input of every √L-th of a stage's L layers.",
    tuned: false,
    make: |_, _| Ok(Box::new(SqrtLayers)),
};

impl CheckpointPolicy for SqrtLayers {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        by_stage(layout, |_, layers| {
            // The smallest whole number whose square isn't below.
            let size = (1..=layers).find(|size| size * size >= layers).unwrap_or(1);
            segments_of(layers, size)
        })
    }
}
