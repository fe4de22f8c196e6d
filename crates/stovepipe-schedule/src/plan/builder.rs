//! Builds a plan that is written by hand, action by action.

use crate::plan::Plan;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Rank, Stage};

/// Collects the actions of each rank in order, and makes a checked [`Plan`] of them.
///
/// ```
/// use stovepipe_schedule::{ComputeKind, Plan};
///
/// // Two stages on two ranks, one micro-batch.
/// let plan = Plan::builder()
///     .rank([(ComputeKind::Forward, 0, 0), (ComputeKind::Backward, 0, 0)])
///     .rank([(ComputeKind::Forward, 1, 0), (ComputeKind::Backward, 1, 0)])
///     .build()?;
/// assert_eq!(plan.to_string(), "rank 0 | 0F0  .   .  0B0\nrank 1 |  .  1F0 1B0  .\n");
/// # Ok::<(), stovepipe_schedule::PlanError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PlanBuilder {
    rows: Vec<Vec<Compute>>,
}

impl PlanBuilder {
    /// Adds a rank that does these actions in order: what, on which stage, for which micro-batch.
    #[must_use]
    pub fn rank(mut self, actions: impl IntoIterator<Item = (ComputeKind, usize, usize)>) -> Self {
        let actions = actions.into_iter();
        let compute = |(kind, stage, m)| Compute::new(kind, Stage::new(stage), MicroBatch::new(m));
        self.rows.push(actions.map(compute).collect());
        self
    }

    /// Adds an action at the end of a rank's row; ranks up to it are added as needed.
    #[must_use]
    pub fn then(mut self, rank: Rank, action: Compute) -> Self {
        if self.rows.len() <= rank.index() {
            self.rows.resize_with(rank.index() + 1, Vec::new);
        }
        self.rows[rank.index()].push(action);
        self
    }

    /// Checks what was collected.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`].
    pub fn build(self) -> Result<Plan, PlanError> {
        Plan::new(self.rows)
    }
}

impl Plan {
    /// Starts an empty plan to be written by hand.
    #[must_use]
    pub fn builder() -> PlanBuilder {
        PlanBuilder::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OneFOneB, Schedule, Shape};

    #[test]
    fn a_plan_taken_apart_and_rebuilt_is_the_same() {
        let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
        let mut builder = Plan::builder();
        // Last rank first: ranks are found by their number.
        for rank in (0..3).rev() {
            for action in plan.row(rank) {
                builder = builder.then(Rank::new(rank), *action);
            }
        }
        assert_eq!(builder.build(), Ok(plan));
    }

    #[test]
    fn what_is_missing_is_found() {
        let builder = Plan::builder().rank([(ComputeKind::Forward, 0, 0)]);
        assert!(builder.clone().build().is_ok(), "an evaluation");
        let builder = builder.rank([(ComputeKind::Backward, 1, 0)]);
        assert!(builder.build().is_err());
        assert_eq!(Plan::builder().build(), Err(PlanError::EmptyShape { what: "ranks" }));
    }
}
