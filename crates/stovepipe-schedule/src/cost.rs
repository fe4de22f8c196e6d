//! What actions cost, as plain numbers. Measuring them is somebody else's business.

use serde::{Deserialize, Serialize};

use crate::{Compute, ComputeKind, CostError, Program, Stage, Timeline};

/// The time of each kind of action on one stage, in any unit, the same everywhere.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageCost {
    /// `F`.
    pub forward: f64,
    /// `B`, the whole backward without recomputation.
    pub backward: f64,
    /// The part of `B` that `W` takes when the backward is split; `I` takes the rest.
    pub weight_grad: f64,
    /// `R`.
    pub recompute: f64,
    /// The optimizer's step on this stage.
    pub update: f64,
}

impl StageCost {
    /// Forward and backward; recomputation costs a forward, `W` half of the backward, the update
    /// nothing.
    #[must_use]
    pub fn new(forward: f64, backward: f64) -> Self {
        Self { forward, backward, weight_grad: backward / 2.0, recompute: forward, update: 0.0 }
    }

    fn of(&self, kind: ComputeKind) -> f64 {
        match kind {
            ComputeKind::Forward => self.forward,
            ComputeKind::Recompute => self.recompute,
            ComputeKind::Backward => self.backward,
            ComputeKind::BackwardInput => self.backward - self.weight_grad,
            ComputeKind::BackwardWeight => self.weight_grad,
        }
    }
}

/// The connection between two ranks.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Link {
    /// Time from the end of a send to the receiver's having a message of no bytes.
    pub latency: f64,
    /// Time during which one message occupies the link, its bytes divided by the bandwidth.
    pub transfer: f64,
}

/// What every action of a program costs.
///
/// Sends and receives cost their rank nothing: a message occupies the link and arrives later, while
/// the rank computes on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CostModel {
    stages: Vec<StageCost>,
    overhead: f64,
    link: Link,
}

impl CostModel {
    /// One cost per stage, in stage order. Neither overhead nor communication cost anything yet.
    #[must_use]
    pub fn new(stages: impl Into<Vec<StageCost>>) -> Self {
        Self { stages: stages.into(), overhead: 0.0, link: Link::default() }
    }

    /// The same forward and backward on every stage.
    #[must_use]
    pub fn uniform(stages: usize, forward: f64, backward: f64) -> Self {
        Self::new(vec![StageCost::new(forward, backward); stages])
    }

    /// The median time of each kind of action on each stage in measured timelines of one program.
    /// Kinds that didn't run cost nothing; the update of a rank counts for its lowest stage.
    #[must_use]
    pub fn measured(timelines: &[Timeline], program: &Program) -> Self {
        let of = |stage: Stage, kind: ComputeKind| {
            median(timelines.iter().flat_map(|t| t.durations(stage, kind)).collect())
        };
        let update = |stage: Stage| {
            let rank = program.rank_of(stage).index();
            if program.plan().stages_of(rank).first() != Some(&stage) {
                return 0.0;
            }
            let updates = timelines.iter().filter_map(|t| t.update(rank));
            median(updates.map(|update| update.end - update.start).collect())
        };
        let stages = Stage::first(program.plan().stages()).map(|stage| StageCost {
            forward: of(stage, ComputeKind::Forward),
            backward: of(stage, ComputeKind::Backward),
            weight_grad: of(stage, ComputeKind::BackwardWeight),
            recompute: of(stage, ComputeKind::Recompute),
            update: update(stage),
        });
        Self::new(stages.collect::<Vec<_>>())
    }

    /// Adds a fixed time to every compute action, such as the launch of its kernels.
    #[must_use]
    pub fn with_overhead(self, overhead: f64) -> Self {
        Self { overhead, ..self }
    }

    /// Sets the connection that every pair of ranks has.
    #[must_use]
    pub fn with_link(self, link: Link) -> Self {
        Self { link, ..self }
    }

    /// The connection between ranks.
    #[must_use]
    pub fn link(&self) -> Link {
        self.link
    }

    /// The cost of each stage.
    #[must_use]
    pub fn stages(&self) -> &[StageCost] {
        &self.stages
    }

    /// The time that an action takes, overhead included.
    ///
    /// # Panics
    ///
    /// If the costs don't cover the action's stage.
    #[must_use]
    pub fn time(&self, action: Compute) -> f64 {
        self.stages[action.stage.index()].of(action.kind) + self.overhead
    }

    /// Checks that there is a usable cost for each of `stages` stages.
    pub(crate) fn check(&self, stages: usize) -> Result<(), CostError> {
        if self.stages.len() != stages {
            return Err(CostError::Stages { found: self.stages.len(), expected: stages });
        }
        let general = [
            ("the overhead per action", self.overhead),
            ("the link's latency", self.link.latency),
            ("the link's transfer time", self.link.transfer),
        ];
        let general = general.into_iter().map(|(what, value)| (what.to_owned(), value));
        let per_stage = self.stages.iter().enumerate().flat_map(|(stage, cost)| {
            [
                ("forward", cost.forward),
                ("backward", cost.backward),
                ("weight gradient", cost.weight_grad),
                ("input gradient", cost.backward - cost.weight_grad),
                ("recomputation", cost.recompute),
                ("update", cost.update),
            ]
            .map(|(what, value)| (format!("the {what} of stage {stage}"), value))
        });
        match general.chain(per_stage).find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
            Some((what, value)) => Err(CostError::Invalid { what, value }),
            None => Ok(()),
        }
    }
}

/// The middle value, or the mean of the two middle ones; zero of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => 0.0,
        (n, half) if n % 2 == 1 => values[half],
        (_, half) => f64::midpoint(values[half - 1], values[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edges, GPipe, Retention, Schedule, Shape, simulate};

    #[test]
    fn costs_measured_on_a_simulated_timeline_are_those_it_was_simulated_with() {
        let plan = GPipe::default().plan(Shape::new(3, 4)).expect("a plan");
        let program =
            Program::lower(&plan, &Edges::chain(3), &Retention::keep_all(&plan)).expect("lowers");
        let stages = [1.0, 2.0, 3.0].map(|f| StageCost {
            weight_grad: 0.0,
            recompute: 0.0,
            update: f / 2.0,
            ..StageCost::new(f, 3.0 * f)
        });
        let costs = CostModel::new(stages);
        let timeline = simulate(&program, &costs).expect("simulates");
        assert_eq!(CostModel::measured(&[timeline], &program), costs);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
