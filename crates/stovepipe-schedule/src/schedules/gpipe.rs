//! GPipe: all forwards, then all backwards (arXiv 1811.06965).

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::shape::Shape;

/// The order in which the backwards of a flush schedule run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// Last micro-batch first, as in torchgpipe: its backward follows its forward at once, so that
    /// it never needs recomputation.
    #[default]
    Reverse,
    /// First micro-batch first: gradients are added in the same order as in 1F1B.
    Forward,
}

/// Fill the pipeline with all micro-batches, then drain it.
///
/// ```text
/// rank 0 | 0F0 0F1 0F2  .   .   .   .  0B2 0B1 0B0
/// rank 1 |  .  1F0 1F1 1F2  .   .  1B2 1B1 1B0  .
/// rank 2 |  .   .  2F0 2F1 2F2 2B2 2B1 2B0  .   .
/// ```
///
/// With P ranks, M micro-batches and uniform costs each rank idles (P−1)(F+B) of (M+P−1)(F+B): the
/// bubble, idle divided by total, is (P−1)/(M+P−1) (GPipe, section 2.3), negligible from M ≥ 4P.
/// Every rank keeps all M micro-batches. One stage per rank, any P and M.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GPipe {
    /// The order of the backwards.
    pub drain: Drain,
}

impl GPipe {
    /// With backwards in this order.
    #[must_use]
    pub fn new(drain: Drain) -> Self {
        Self { drain }
    }
}

impl Schedule for GPipe {
    fn name(&self) -> &str {
        match self.drain {
            Drain::Reverse => "gpipe",
            Drain::Forward => "gpipe-forward",
        }
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check_stages_per_rank(self.name(), 1)?;
        Plan::new(Stage::first(shape.ranks).map(|stage| {
            let all = || MicroBatch::first(shape.micro_batches);
            let fill = all().map(|m| Compute::forward(stage, m));
            let drain = |m| Compute::backward(stage, m);
            match self.drain {
                Drain::Reverse => fill.chain(all().rev().map(drain)).collect(),
                Drain::Forward => fill.chain(all().map(drain)).collect(),
            }
        }))
    }
}

/// The entry of the drain that takes the last micro-batch first.
pub(super) const REVERSE: NamedSchedule = NamedSchedule {
    name: "gpipe",
    summary: "Runs all forwards, then all backwards, the last micro-batch first.",
    tuned: true,
    make: || Box::new(GPipe::new(Drain::Reverse)),
};

/// The entry of the drain that takes the first micro-batch first.
pub(super) const FORWARD: NamedSchedule = NamedSchedule {
    name: "gpipe-forward",
    summary: "Runs all forwards, then all backwards, the first micro-batch first.",
    tuned: true,
    make: || Box::new(GPipe::new(Drain::Forward)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reverse_drain_has_the_documented_grid() {
        let plan = GPipe::default().plan(Shape::new(3, 3)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2  .   .   .   .  0B2 0B1 0B0
rank 1 |  .  1F0 1F1 1F2  .   .  1B2 1B1 1B0  .
rank 2 |  .   .  2F0 2F1 2F2 2B2 2B1 2B0  .   .
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn a_forward_drain_lets_the_first_rank_follow_at_once() {
        let plan = GPipe::new(Drain::Forward).plan(Shape::new(2, 3)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2  .   .  0B0 0B1 0B2
rank 1 |  .  1F0 1F1 1F2 1B0 1B1 1B2  .
";
        // Rank 1 drains micro-batch 0 in slot 4, so rank 0 can follow in slot 5.
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn refuses_shapes_it_cannot_do() {
        let error = GPipe::default()
            .plan(Shape::new(2, 3).with_stages_per_rank(2))
            .expect_err("two stages per rank");
        assert!(error.to_string().contains("one stage per rank"), "{error}");
        assert!(GPipe::default().plan(Shape::new(0, 3)).is_err());
        assert!(GPipe::default().plan(Shape::new(3, 0)).is_err());
        assert!(GPipe::default().plan(Shape::new(usize::MAX, usize::MAX)).is_err());
    }
}
