//! The trait that every checkpoint policy implements. Its implementations stand in the folder
//! `policies`, or downstream.

use std::sync::Arc;

use stovepipe_schedule::{Plan, Retention, Stage};

use crate::error::PolicyError;

/// A plan and the layers of its stages, about which a policy decides.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    plan: &'a Plan,
    layers: &'a [usize],
}

impl<'a> Layout<'a> {
    /// A plan and the number of layers in each of its stages.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Stages`] if the two have different numbers of stages.
    pub fn new(plan: &'a Plan, layers: &'a [usize]) -> Result<Self, PolicyError> {
        if plan.stages() != layers.len() {
            return Err(PolicyError::Stages { found: layers.len(), expected: plan.stages() });
        }
        Ok(Self { plan, layers })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// The number of layers in a stage.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn layers(&self, stage: Stage) -> usize {
        self.layers[stage.index()]
    }
}

/// Decides which activations are kept from forward to backward.
///
/// What a plan recomputes by an `R` of its own is recomputed whatever the policy says.
///
/// A policy is a pure function of the [`Layout`]. It sees the plan, and with it the actual number
/// of micro-batches and the order of the backwards. Where a micro-batch's backward is its rank's
/// very next action, keeping the activations costs no memory that recomputation wouldn't need as
/// well.
///
/// # Examples
///
/// Keep everything on the last stage, nothing elsewhere:
///
/// ```
/// use stovepipe_checkpoint::{CheckpointPolicy, Layout, PolicyError};
/// use stovepipe_schedule::{GPipe, MicroBatch, Retention, Schedule, Shape, Stage, StageRetention};
///
/// struct LastStageKeeps;
///
/// impl CheckpointPolicy for LastStageKeeps {
///     fn name(&self) -> &str {
///         "last-stage-keeps"
///     }
///
///     fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
///         let last = Stage::new(layout.plan().stages() - 1);
///         Ok(Retention::from_fn(layout.plan(), |stage, _| {
///             let layers = if stage == last { 0 } else { layout.layers(stage) };
///             StageRetention::drop_all(layers)
///         }))
///     }
/// }
///
/// let plan = GPipe::default().plan(Shape::new(2, 4))?;
/// let retention = LastStageKeeps.retention(Layout::new(&plan, &[3, 3])?)?;
/// assert!(retention.of(Stage::new(0), MicroBatch::new(3)).recomputes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait CheckpointPolicy: Send + Sync {
    /// The name used in command lines, errors and reports, like `except-last`.
    fn name(&self) -> &str;

    /// Decides what each stage keeps of each micro-batch.
    ///
    /// # Errors
    ///
    /// [`PolicyError`] if the layout can't be done justice, and why.
    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError>;
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<P: CheckpointPolicy + ?Sized> CheckpointPolicy for $pointer {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
                (**self).retention(layout)
            }
        }
    )*};
}
forward!(&P, Box<P>, Arc<P>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_dyn_compatible() {
        let boxed: Box<dyn CheckpointPolicy> = Box::new(crate::Always);
        assert_eq!(boxed.name(), "always");
    }
}
