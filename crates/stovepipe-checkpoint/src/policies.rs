//! The policies that decide by micro-batch: a stage keeps all of it or only its input.

use std::collections::HashSet;

use stovepipe_schedule::{ComputeKind, MicroBatch, Retention, Stage, StageRetention};

use crate::{CheckpointPolicy, Layout, PolicyError};

/// Keeps every activation; nothing is recomputed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Never;

/// Keeps only the input of each stage; every backward recomputes its forward, as in GPipe
/// (arXiv 1811.06965, section 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Always;

/// Like [`Always`], but without the recomputation that never pays: that of a micro-batch whose
/// backward is the rank's very next action, and of the first backward of each stage.
///
/// With GPipe's reverse drain both mean the last micro-batch, as in torchgpipe: its activations are
/// needed at once. In a forward drain it is the first micro-batch whose backward comes first; its
/// activations then stay through the rest of the fill. In 1F1B the last stage recomputes nothing.
/// The plan counts, not the number of micro-batches that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExceptLast;

impl CheckpointPolicy for Never {
    fn name(&self) -> &str {
        "never"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        Ok(Retention::keep_all(layout.plan()))
    }
}

impl CheckpointPolicy for Always {
    fn name(&self) -> &str {
        "always"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        Ok(keep_only(layout, &HashSet::new()))
    }
}

impl CheckpointPolicy for ExceptLast {
    fn name(&self) -> &str {
        "except-last"
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
        Ok(keep_only(layout, &kept))
    }
}

fn keep_only(layout: Layout<'_>, kept: &HashSet<(Stage, MicroBatch)>) -> Retention {
    Retention::from_fn(layout.plan(), |stage, m| {
        if kept.contains(&(stage, m)) {
            StageRetention::keep_all()
        } else {
            StageRetention::drop_all(layout.layers(stage))
        }
    })
}

#[cfg(test)]
mod tests {
    use stovepipe_schedule::{
        CostModel, Drain, Edges, GPipe, OneFOneB, Program, Schedule, Shape, simulate,
    };

    use super::*;

    const NONE: Vec<usize> = Vec::new();

    /// The stages' recomputed micro-batches.
    fn recomputed(
        policy: &dyn CheckpointPolicy,
        schedule: &dyn Schedule,
        shape: Shape,
    ) -> Vec<Vec<usize>> {
        let plan = schedule.plan(shape).expect("a plan");
        let layers = vec![2; plan.stages()];
        let layout = Layout::new(&plan, &layers).expect("fits");
        let retention = policy.retention(layout).expect("a retention");
        Stage::first(plan.stages())
            .map(|stage| {
                MicroBatch::first(plan.micro_batches())
                    .filter(|m| retention.of(stage, *m).recomputes())
                    .map(MicroBatch::index)
                    .collect()
            })
            .collect()
    }

    #[test]
    fn never_and_always() {
        let shape = Shape::new(2, 3);
        assert_eq!(recomputed(&Never, &OneFOneB, shape), [NONE, NONE]);
        assert_eq!(recomputed(&Always, &OneFOneB, shape), [vec![0, 1, 2], vec![0, 1, 2]]);
    }

    #[test]
    fn except_last_follows_the_drain_order() {
        let shape = Shape::new(2, 3);
        assert_eq!(recomputed(&ExceptLast, &GPipe::default(), shape), [vec![0, 1], vec![0, 1]]);
        let forward = GPipe::new(Drain::Forward);
        assert_eq!(recomputed(&ExceptLast, &forward, shape), [vec![1, 2], vec![1, 2]]);
        // Rank 1 alternates and needs nothing; rank 0 saves its first backward.
        assert_eq!(recomputed(&ExceptLast, &OneFOneB, shape), [vec![1, 2], NONE]);
    }

    #[test]
    fn except_last_counts_the_micro_batches_there_are() {
        // A peer compared with the number asked for, and recomputed all three of three.
        assert_eq!(recomputed(&ExceptLast, &GPipe::default(), Shape::new(1, 3)), [vec![0, 1]]);
        assert_eq!(
            recomputed(&ExceptLast, &GPipe::default(), Shape::new(3, 1)),
            [NONE, NONE, NONE]
        );
    }

    #[test]
    fn the_recomputation_of_the_first_backward_is_really_saved() {
        // Two stages, M = 4, F = R = 1, B = 2. The critical path passes through the last rank, whose
        // first backward needs no recomputation under `ExceptLast`.
        let makespan = |policy: &dyn CheckpointPolicy, drain| {
            let plan = GPipe::new(drain).plan(Shape::new(2, 4)).expect("a plan");
            let retention =
                policy.retention(Layout::new(&plan, &[1, 1]).expect("fits")).expect("decides");
            let program = Program::lower(&plan, &Edges::chain(2), &retention).expect("lowers");
            simulate(&program, &CostModel::uniform(2, 1.0, 2.0)).expect("simulates").makespan()
        };
        for drain in [Drain::Reverse, Drain::Forward] {
            assert_eq!(makespan(&Always, drain) - makespan(&ExceptLast, drain), 1.0, "{drain:?}");
        }
    }

    #[test]
    fn layers_must_fit_the_plan() {
        let plan = OneFOneB.plan(Shape::new(2, 3)).expect("a plan");
        assert!(matches!(
            Layout::new(&plan, &[1]),
            Err(PolicyError::Stages { found: 1, expected: 2 })
        ));
    }
}
