//! Which activations are kept from a forward until its backward, as data. A checkpoint policy
//! decides; lowering, simulator and executor only read it.

use std::collections::HashSet;
use std::ops::Range;

use crate::plan::Plan;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};

/// The activations of one micro-batch that a stage keeps: all, except those of dropped segments. Of
/// a dropped segment only the input is kept.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StageRetention {
    dropped: Vec<Range<usize>>,
}

impl StageRetention {
    /// All activations are kept; nothing is recomputed.
    #[must_use]
    pub fn keep_all() -> Self {
        Self::default()
    }

    /// Only the stage's input is kept; all of its `layers` are recomputed in one go.
    #[must_use]
    pub fn drop_all(layers: usize) -> Self {
        let whole = 0..layers;
        Self { dropped: if layers == 0 { Vec::new() } else { vec![whole] } }
    }

    /// Drops the activations of these segments of layers, counted from the stage's first.
    ///
    /// # Errors
    ///
    /// [`PlanError::Segments`] unless they are non-empty, ascending, disjoint and within `layers`.
    pub fn drop_segments(
        stage: Stage,
        layers: usize,
        dropped: Vec<Range<usize>>,
    ) -> Result<Self, PlanError> {
        let mut end = 0;
        for segment in &dropped {
            if segment.start < end || segment.is_empty() || segment.end > layers {
                return Err(PlanError::Segments { stage, layers, dropped });
            }
            end = segment.end;
        }
        Ok(Self { dropped })
    }

    /// The dropped segments, ascending.
    #[must_use]
    pub fn dropped(&self) -> &[Range<usize>] {
        &self.dropped
    }

    /// Whether something has to be recomputed.
    #[must_use]
    pub fn recomputes(&self) -> bool {
        !self.dropped.is_empty()
    }
}

/// The activations that every stage keeps of every micro-batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retention {
    // Few different patterns serve many micro-batches.
    patterns: Vec<StageRetention>,
    choice: Vec<u32>,
    stages: usize,
    micro_batches: usize,
}

impl Retention {
    /// Everything is kept.
    #[must_use]
    pub fn keep_all(plan: &Plan) -> Self {
        Self::from_fn(plan, |_, _| StageRetention::keep_all())
    }

    /// Asks `retention` for every stage and micro-batch of the plan.
    pub fn from_fn(
        plan: &Plan,
        mut retention: impl FnMut(Stage, MicroBatch) -> StageRetention,
    ) -> Self {
        let mut patterns: Vec<StageRetention> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        let (stages, micro_batches) = (plan.stages(), plan.micro_batches());
        let mut choice = Vec::with_capacity(stages * micro_batches);
        let mut number = 0u32;
        for stage in Stage::first(stages) {
            for m in MicroBatch::first(micro_batches) {
                let pattern = retention(stage, m);
                // Mostly it is that of the micro-batch before.
                if patterns.get(number as usize) == Some(&pattern) {
                    choice.push(number);
                    continue;
                }
                number = *numbers.entry(pattern).or_insert_with_key(|pattern| {
                    patterns.push(pattern.clone());
                    patterns.len() as u32 - 1
                });
                choice.push(number);
            }
        }
        Self { patterns, choice, stages, micro_batches }
    }

    /// The retention that the plan's own `R` actions ask for, each stage taken as one layer.
    pub(crate) fn of_plan(plan: &Plan) -> Self {
        Self::keep_all(plan).with_recomputed(plan, &vec![1; plan.stages()])
    }

    /// Drops what the plan itself recomputes with an `R`: all `layers` of the stage, where this
    /// keeps everything of the micro-batch.
    ///
    /// # Panics
    ///
    /// If `layers` has no number for a stage, or this was made for a smaller plan.
    #[must_use]
    pub fn with_recomputed(self, plan: &Plan, layers: &[usize]) -> Self {
        let recomputes = |a: &&Compute| a.kind == ComputeKind::Recompute;
        let placed = plan.rows().iter().flatten().filter(recomputes);
        let placed: HashSet<_> = placed.map(|a| (a.stage, a.micro_batch)).collect();
        if placed.is_empty() {
            return self;
        }
        Self::from_fn(plan, |stage, m| match self.of(stage, m) {
            kept if !kept.recomputes() && placed.contains(&(stage, m)) => {
                StageRetention::drop_all(layers[stage.index()])
            }
            decided => decided.clone(),
        })
    }

    /// The pattern of `stage` for `micro_batch`.
    ///
    /// # Panics
    ///
    /// If the plan it was made for has no such stage or micro-batch.
    #[must_use]
    pub fn of(&self, stage: Stage, micro_batch: MicroBatch) -> &StageRetention {
        &self.patterns
            [self.choice[stage.index() * self.micro_batches + micro_batch.index()] as usize]
    }

    /// Checks that it was made for a plan of this size.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let sizes = [
            ("stages", self.stages, plan.stages()),
            ("micro-batches", self.micro_batches, plan.micro_batches()),
        ];
        for (unit, found, expected) in sizes {
            if found != expected {
                return Err(PlanError::Mismatch { what: "retention", unit, found, expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GPipe, Schedule, Shape};

    #[test]
    fn segments_are_ascending_disjoint_and_within_the_stage() {
        let make = |segments: &[(usize, usize)]| {
            let segments = segments.iter().map(|&(start, end)| start..end).collect();
            StageRetention::drop_segments(Stage::new(0), 6, segments)
        };
        assert!(make(&[(0, 2), (2, 4), (5, 6)]).is_ok());
        for bad in [&[(0, 2), (1, 3)][..], &[(3, 5), (0, 1)], &[(4, 7)], &[(2, 2)]] {
            assert!(make(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn equal_patterns_are_stored_once() {
        let plan = GPipe::default().plan(Shape::new(4, 100)).expect("a plan");
        let retention = Retention::from_fn(&plan, |_, m| {
            if m.index() == 99 { StageRetention::keep_all() } else { StageRetention::drop_all(3) }
        });
        assert_eq!(retention.patterns.len(), 2);
        assert!(retention.of(Stage::new(3), MicroBatch::new(98)).recomputes());
        assert!(!retention.of(Stage::new(3), MicroBatch::new(99)).recomputes());
    }
}
