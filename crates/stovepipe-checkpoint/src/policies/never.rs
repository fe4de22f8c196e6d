//! Never: nothing is recomputed.

use stovepipe_schedule::Retention;

use crate::error::PolicyError;
use crate::named::NamedPolicy;
use crate::policy::{CheckpointPolicy, Layout};

/// Keeps every activation; nothing is recomputed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Never;

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "never",
    form: "never",
    example: "never",
    summary: "Keeps every activation; nothing is recomputed.",
    tuned: true,
    make: |_, _| Ok(Box::new(Never)),
};

impl CheckpointPolicy for Never {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        Ok(Retention::keep_all(layout.plan()))
    }
}
