//! Except last: always, without the recomputation that never pays.

use std::collections::HashSet;

use stovepipe_schedule::{ComputeKind, Retention, StageRetention};

use crate::error::PolicyError;
use crate::named::NamedPolicy;
use crate::policy::{CheckpointPolicy, Layout};

/// Recomputes as [`Always`](crate::Always), except where that never pays: of a micro-batch whose
/// backward is the rank's very next action, and of the first backward of each stage.
///
/// With GPipe's reverse drain both mean the last micro-batch, as in torchgpipe: its activations are
/// needed at once. In a forward drain it is the first micro-batch whose backward comes first; its
/// activations then stay through the rest of the fill. In 1F1B the last stage recomputes nothing.
/// The plan counts, not the number of micro-batches that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExceptLast;

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "except-last",
    form: "except-last",
    example: "except-last",
    summary: "Keeps only the input of each stage, except where the backward follows at once or is the first.",
    tuned: true,
    make: |_, _| Ok(Box::new(ExceptLast)),
};

impl CheckpointPolicy for ExceptLast {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let mut kept = HashSet::new();
        for row in layout.plan().rows() {
            let mut begun = HashSet::new();
            for (position, action) in row.iter().enumerate() {
                let starts_backward =
                    matches!(action.kind, ComputeKind::Backward | ComputeKind::BackwardInput);
                if !starts_backward {
                    continue;
                }
                let previous = position.checked_sub(1).map(|p| row[p]);
                let at_once = previous.is_some_and(|p| {
                    p.kind == ComputeKind::Forward
                        && (p.stage, p.micro_batch) == (action.stage, action.micro_batch)
                });
                if begun.insert(action.stage) || at_once {
                    kept.insert((action.stage, action.micro_batch));
                }
            }
        }
        Ok(Retention::from_fn(layout.plan(), |stage, m| {
            if kept.contains(&(stage, m)) {
                StageRetention::keep_all()
            } else {
                StageRetention::drop_all(layout.layers(stage))
            }
        }))
    }
}
