//! Except last: always, without the recomputation that never pays.

use stovepipe_schedule::{ComputeKind, MicroBatch, Retention, Stage, StageRetention};

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
        let plan = layout.plan();
        let place = |stage: Stage, m: MicroBatch| stage.index() * plan.micro_batches() + m.index();
        let mut kept = vec![false; plan.stages() * plan.micro_batches()];
        let mut begun = vec![false; plan.stages()];
        for row in plan.rows() {
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
                let has_begun = std::mem::replace(&mut begun[action.stage.index()], true);
                if !has_begun || at_once {
                    kept[place(action.stage, action.micro_batch)] = true;
                }
            }
        }
        Ok(Retention::from_fn(plan, |stage, m| {
            if kept[place(stage, m)] {
                StageRetention::keep_all()
            } else {
                StageRetention::drop_all(layout.layers(stage))
            }
        }))
    }
}
