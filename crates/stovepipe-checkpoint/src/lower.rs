//! The one way from a plan to a program: a policy decides about the plan, and the plan is lowered
//! with what it decided. Pipelines, the tuner, benches and the command line all go through here.

use stovepipe_schedule::{Edges, Mode, Plan, Program, Retention};

use crate::error::PolicyError;
use crate::policy::{CheckpointPolicy, Layout};

/// Lowers a plan along the model's edges, with what the policy keeps of `layers` layers in each
/// stage.
///
/// What the plan recomputes by an `R` of its own is recomputed too. For a plan without backwards
/// the policy isn't asked: nothing is kept anyway.
///
/// ```
/// use stovepipe_checkpoint::{Always, lower};
/// use stovepipe_schedule::{Edges, GPipe, Schedule, Shape};
///
/// let plan = GPipe::default().plan(Shape::new(2, 4))?;
/// let program = lower(&plan, &[3, 3], &Always, &Edges::chain(2))?;
/// assert_eq!(program.row(0)[0].to_string(), "0F0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`PolicyError`] if there are layers for another number of stages, if the policy refuses the
/// plan, or if edges don't go with it.
pub fn lower(
    plan: &Plan,
    layers: &[usize],
    policy: &dyn CheckpointPolicy,
    edges: &Edges,
) -> Result<Program, PolicyError> {
    Ok(Program::lower(plan, edges, &decide(plan, layers, policy)?)?)
}

/// Decides what each stage keeps, as [`lower`] does.
///
/// # Errors
///
/// As [`lower`], edges apart.
pub fn decide(
    plan: &Plan,
    layers: &[usize],
    policy: &dyn CheckpointPolicy,
) -> Result<Retention, PolicyError> {
    let layout = Layout::new(plan, layers)?;
    if plan.mode() == Mode::ForwardOnly {
        return Ok(Retention::keep_all(plan));
    }
    Ok(policy.retention(layout)?.with_recomputed(plan, layers))
}

#[cfg(test)]
mod tests {
    use stovepipe_schedule::{
        ForwardOnly, MicroBatch, OneFOneB, Schedule, Shape, Stage, StageRetention,
    };

    use super::*;
    use crate::{Always, Never};

    #[test]
    fn what_a_plan_recomputes_by_itself_is_recomputed() {
        let plan = Plan::parse(["0F0 0F1 0R0 0B0 0B1"].map(str::split_whitespace)).expect("valid");
        let program = lower(&plan, &[3], &Never, &Edges::chain(1)).expect("lowers");
        let kept = |m| program.retention().of(Stage::new(0), MicroBatch::new(m));
        assert_eq!(kept(0), &StageRetention::drop_all(3));
        assert!(!kept(1).recomputes());
    }

    #[test]
    fn without_backwards_nothing_is_decided() {
        let plan = ForwardOnly.plan(Shape::new(2, 2)).expect("a plan");
        assert_eq!(decide(&plan, &[1, 1], &Always), Ok(Retention::keep_all(&plan)));
    }

    #[test]
    fn layers_and_edges_must_go_with_the_plan() {
        let plan = OneFOneB.plan(Shape::new(2, 3)).expect("a plan");
        let refused = |layers: &[usize], edges| lower(&plan, layers, &Always, &edges);
        assert!(matches!(
            refused(&[1], Edges::chain(2)),
            Err(PolicyError::Stages { found: 1, expected: 2 })
        ));
        assert!(matches!(refused(&[1, 1], Edges::chain(3)), Err(PolicyError::Plan(_))));
    }
}
