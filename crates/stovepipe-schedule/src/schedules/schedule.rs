//! The trait that every schedule implements. Its implementations stand next to it, or in other
//! crates.

use std::sync::Arc;

use crate::plan::Plan;
use crate::words::error::PlanError;
use crate::words::shape::Shape;

/// Orders the work of a pipeline.
///
/// A schedule is a pure function from a [`Shape`] to a [`Plan`]: the same shape gives the same
/// plan, and nothing else is looked at. It places stages on ranks and orders `F`, `B` (or `I` and
/// `W`) on each of them; recomputation and communication are added later by
/// [`Program::lower`](crate::Program::lower). Whatever it writes is checked by [`Plan::new`], so
/// that a plan which loses, repeats or reorders work, or could deadlock, is refused before anything
/// runs.
///
/// # Examples
///
/// Strictly one micro-batch at a time, the slowest schedule there is:
///
/// ```
/// use stovepipe_schedule::{Compute, MicroBatch, Plan, PlanError, Schedule, Shape, Stage};
///
/// struct OneByOne;
///
/// impl Schedule for OneByOne {
///     fn name(&self) -> &str {
///         "one-by-one"
///     }
///
///     fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
///         shape.check_stages_per_rank(self.name(), 1)?;
///         Plan::new(Stage::first(shape.ranks).map(|stage| {
///             MicroBatch::first(shape.micro_batches)
///                 .flat_map(|m| [Compute::forward(stage, m), Compute::backward(stage, m)])
///                 .collect()
///         }))
///     }
/// }
///
/// let plan = OneByOne.plan(Shape::new(2, 3))?;
/// assert_eq!(plan.row(0)[1].to_string(), "0B0");
/// # Ok::<(), PlanError>(())
/// ```
///
/// The runtime executes plans made of `F`, `R` and `B` on any stage. Plans with `I` and `W` need a
/// stage whose compute can split its backward.
pub trait Schedule: Send + Sync {
    /// The name used in command lines, errors and reports, like `gpipe` or `1f1b`.
    fn name(&self) -> &str;

    /// The plan for `shape`.
    ///
    /// # Errors
    ///
    /// A shape that the schedule can't do is [`PlanError::Unsupported`] and says which it can; zero
    /// or too many actions are refused by [`Shape::check`].
    fn plan(&self, shape: Shape) -> Result<Plan, PlanError>;

    /// Stages per rank to plan for when nobody says how many: 1, or what a schedule of several
    /// needs.
    fn default_stages_per_rank(&self) -> usize {
        1
    }
}

impl<S: Schedule + ?Sized> Schedule for &S {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        (**self).plan(shape)
    }

    fn default_stages_per_rank(&self) -> usize {
        (**self).default_stages_per_rank()
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        (**self).plan(shape)
    }

    fn default_stages_per_rank(&self) -> usize {
        (**self).default_stages_per_rank()
    }
}

impl<S: Schedule + ?Sized> Schedule for Arc<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        (**self).plan(shape)
    }

    fn default_stages_per_rank(&self) -> usize {
        (**self).default_stages_per_rank()
    }
}

/// A plan written by hand or read from a file, as a schedule, for the one shape that it was made
/// for.
///
/// ```
/// use stovepipe_schedule::{Plan, Schedule, Shape};
///
/// let plan = Plan::parse(["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"].map(|row| row.split(',')))?;
/// assert_eq!(plan.plan(Shape::new(2, 2)), Ok(plan.clone()));
/// assert!(plan.plan(Shape::new(2, 4)).is_err());
/// # Ok::<(), stovepipe_schedule::PlanError>(())
/// ```
impl Schedule for Plan {
    fn name(&self) -> &str {
        "plan"
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check()?;
        if (self.ranks(), self.stages(), self.micro_batches())
            == (shape.ranks, shape.stages(), shape.micro_batches)
        {
            return Ok(self.clone());
        }
        Err(PlanError::Unsupported {
            schedule: self.name().to_owned(),
            shape,
            supported: format!(
                "the shape it was made for: {} ranks, {} stages in all, {} micro-batches",
                self.ranks(),
                self.stages(),
                self.micro_batches()
            ),
        })
    }

    fn default_stages_per_rank(&self) -> usize {
        self.stages().div_ceil(self.ranks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GPipe;

    #[test]
    fn schedules_are_dyn_compatible() {
        let boxed: Box<dyn Schedule> = Box::new(GPipe::default());
        assert_eq!(boxed.name(), "gpipe");
        assert!(boxed.plan(Shape::new(2, 2)).is_ok());
    }
}
