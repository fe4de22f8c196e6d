//! The checkpoint policies, one in each file, and where they are found by name.

mod always;
mod budget;
mod every_layers;
mod except_last;
mod never;
mod segments;
mod selective;
mod sqrt_layers;

pub use always::Always;
pub use budget::Budget;
pub use every_layers::EveryLayers;
pub use except_last::ExceptLast;
pub use never::Never;
pub use selective::Selective;
pub use sqrt_layers::SqrtLayers;

use crate::error::PolicyError;
use crate::named::{NamedPolicy, PolicyFacts};
use crate::policy::CheckpointPolicy;

/// Every checkpoint policy of this crate.
#[must_use]
pub fn policies() -> &'static [NamedPolicy] {
    &[
        never::NAMED,
        except_last::NAMED,
        always::NAMED,
        every_layers::NAMED,
        sqrt_layers::NAMED,
        selective::NAMED,
        budget::NAMED,
    ]
}

/// The checkpoint policy of this name, with its argument behind a `=` if it takes one.
///
/// ```
/// use stovepipe_checkpoint::{CheckpointPolicy, PolicyFacts, policy_named};
///
/// let facts = PolicyFacts::default();
/// assert_eq!(policy_named("except-last", &facts)?.name(), "except-last");
/// assert_eq!(policy_named("every-layers=4", &facts)?.name(), "every-layers");
/// assert!(policy_named("every-layers=none", &facts).is_err());
/// # Ok::<(), stovepipe_checkpoint::PolicyError>(())
/// ```
///
/// # Errors
///
/// [`PolicyError::UnknownPolicy`] lists the names there are, [`PolicyError::Argument`] says what to
/// write, and [`PolicyError::MissingFact`] which fact is missing.
pub fn policy_named(
    text: &str,
    facts: &PolicyFacts,
) -> Result<Box<dyn CheckpointPolicy>, PolicyError> {
    let (name, argument) = match text.split_once('=') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let named = policies().iter().find(|named| named.name == name);
    let named = named.ok_or_else(|| PolicyError::UnknownPolicy {
        name: name.chars().take(40).collect(),
        known: policies().iter().map(|named| named.form).collect::<Vec<_>>().join(", "),
    })?;
    named.make(argument, facts)
}

#[cfg(test)]
mod tests {
    use stovepipe_schedule::{
        CostModel, Drain, Edges, GPipe, MicroBatch, OneFOneB, Program, Schedule, Shape, Stage,
        simulate,
    };

    use super::*;
    use crate::{LayerActivations, Layout};

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
        // Two stages, M = 4, F = R = 1, B = 2. The critical path passes through the last rank,
        // whose first backward needs no recomputation under `ExceptLast`.
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

    #[test]
    fn policies_are_found_by_their_names() {
        let facts = PolicyFacts::default().with_layers([LayerActivations::default()]);
        for named in policies() {
            let found = policy_named(named.example, &facts).expect("it is listed");
            assert_eq!(found.name(), named.name);
            let (prefix, _) = named.form.split_once('=').unwrap_or((named.form, ""));
            assert_eq!(prefix, named.name);
            assert!(named.summary.ends_with('.'), "{}", named.name);
            assert!(!(named.tuned && named.takes_argument()), "{}", named.name);
        }
    }

    #[test]
    fn names_and_arguments_that_cannot_be_used_are_refused_with_advice() {
        for (text, advice) in [
            ("sometimes", "use one of never, except-last, always, every-layers=N, sqrt-layers"),
            ("every-layers", "`every-layers` can't be used: write it like `every-layers=4`"),
            ("every-layers=0", "`every-layers=0` can't be used"),
            ("selective=1,x", "write it like `selective=3,7`"),
            ("never=1", "write it like `never`"),
            ("budget=much", "write it like `budget=16GiB`"),
            ("budget=16GiB", "`budget` needs to know the bytes and times of the model's layers"),
        ] {
            let error = policy_named(text, &PolicyFacts::default()).err().expect("refused");
            assert!(error.to_string().contains(advice), "{text}: {error}");
        }
    }
}
