//! Always: every micro-batch is recomputed on every stage.

use stovepipe_schedule::{Retention, StageRetention};

use crate::error::PolicyError;
use crate::named::NamedPolicy;
use crate::policy::{CheckpointPolicy, Layout};

/// Keeps only the input of each stage; every backward recomputes its forward, as in GPipe
/// (arXiv 1811.06965, section 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Always;

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "always",
    form: "always",
    example: "always",
    summary: "Keeps only the input of each stage, as in GPipe.",
    tuned: true,
    make: |_, _| Ok(Box::new(Always)),
};

impl CheckpointPolicy for Always {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        Ok(Retention::from_fn(layout.plan(), |stage, _| {
            StageRetention::drop_all(layout.layers(stage))
        }))
    }
}
