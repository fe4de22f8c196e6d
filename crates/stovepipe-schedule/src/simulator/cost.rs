//! The costs of actions and messages, as plain numbers. How they are measured isn't known here.

use std::collections::HashMap;

use crate::program::Program;
use crate::simulator::link::{Handling, Link};
use crate::simulator::stage_cost::StageCost;
use crate::simulator::timeline::Timeline;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::CostError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::message::Edge;

/// The cost of every action of a program.
///
/// Unless [communication blocks](Self::with_blocking_sends) or [handling](Self::with_handling)
/// costs time, messages cost their ranks nothing: they occupy the link and arrive later, while the
/// ranks compute on.
#[derive(Clone, PartialEq, Debug)]
pub struct CostModel {
    stages: Vec<StageCost>,
    /// For each stage the micro-batches that have a cost of their own, as places in `own`.
    special: Vec<Vec<Option<u32>>>,
    own: Vec<StageCost>,
    overhead: f64,
    link: Link,
    /// Edges with a link of their own.
    links: HashMap<Edge, Link>,
    handling: Handling,
    /// Edges whose messages take their own time of their ranks.
    handlings: HashMap<Edge, Handling>,
    blocking_sends: bool,
    queue_limit: Option<usize>,
    /// The node of each rank, where nodes share a network card.
    nodes: Vec<usize>,
    gathers: f64,
}

impl CostModel {
    /// One cost per stage, in stage order. Neither overhead nor communication cost anything yet.
    #[must_use]
    pub fn new(stages: impl Into<Vec<StageCost>>) -> Self {
        Self {
            stages: stages.into(),
            special: Vec::new(),
            own: Vec::new(),
            overhead: 0.0,
            link: Link::default(),
            links: HashMap::new(),
            handling: Handling::default(),
            handlings: HashMap::new(),
            blocking_sends: false,
            queue_limit: None,
            nodes: Vec::new(),
            gathers: 0.0,
        }
    }

    /// The same forward and backward on every stage.
    #[must_use]
    pub fn uniform(stages: usize, forward: f64, backward: f64) -> Self {
        Self::new(vec![StageCost::new(forward, backward); stages])
    }

    /// The median time of each kind of action on each stage in measured timelines of one program.
    /// Kinds that didn't run cost nothing; the update of a rank counts for its lowest stage.
    ///
    /// Where backwards ran split, a whole one costs what `I` and `W` took together; where a stage
    /// ran both, a whole one counts, and `I` costs what `W` leaves of it.
    #[must_use]
    pub fn measured(timelines: &[Timeline], program: &Program) -> Self {
        let time = |stage: Stage, kind: ComputeKind| {
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
        let ran = |stage: Stage, kind: ComputeKind| {
            timelines.iter().any(|t| t.durations(stage, kind).next().is_some())
        };
        let stages = Stage::first(program.plan().stages()).map(|stage| {
            let weight_grad = time(stage, ComputeKind::BackwardWeight);
            let backward = match ran(stage, ComputeKind::Backward) {
                true => time(stage, ComputeKind::Backward),
                false => time(stage, ComputeKind::BackwardInput) + weight_grad,
            };
            StageCost {
                forward: time(stage, ComputeKind::Forward),
                backward,
                weight_grad: weight_grad.min(backward),
                recompute: time(stage, ComputeKind::Recompute),
                update: update(stage),
            }
        });
        Self::new(stages.collect::<Vec<_>>())
    }

    /// Gives one micro-batch of a stage another cost than its others, such as a shorter last one.
    /// The update belongs to no micro-batch: that of `cost` is not looked at.
    #[must_use]
    pub fn with_micro_batch(
        mut self,
        stage: Stage,
        micro_batch: MicroBatch,
        cost: StageCost,
    ) -> Self {
        /// So many of the costs given last are looked at for an equal one.
        const LOOKED_AT: usize = 8;
        let recent = self.own.len().saturating_sub(LOOKED_AT);
        let place = match self.own[recent..].iter().position(|own| *own == cost) {
            Some(place) => recent + place,
            None => {
                self.own.push(cost);
                self.own.len() - 1
            }
        };
        let (stage, m) = (stage.index(), micro_batch.index());
        self.special.resize(self.special.len().max(stage + 1), Vec::new());
        let of_stage = &mut self.special[stage];
        of_stage.resize(of_stage.len().max(m + 1), None);
        of_stage[m] = u32::try_from(place).ok();
        self
    }

    /// Adds a fixed time to every compute action, such as the launch of its kernels.
    #[must_use]
    pub fn with_overhead(self, overhead: f64) -> Self {
        Self { overhead, ..self }
    }

    /// Sets the link of all messages.
    #[must_use]
    pub fn with_link(self, link: Link) -> Self {
        Self { link, ..self }
    }

    /// Sets the link of the messages along one edge, in both directions: another bandwidth, or
    /// another size of the boundary.
    #[must_use]
    pub fn with_edge_link(mut self, edge: Edge, link: Link) -> Self {
        self.links.insert(edge, link);
        self
    }

    /// Keeps a rank from computing until its message has left, for transports that can't send and
    /// compute at once.
    #[must_use]
    pub fn with_blocking_sends(self, blocking_sends: bool) -> Self {
        Self { blocking_sends, ..self }
    }

    /// Sets the time that every message takes of its ranks.
    #[must_use]
    pub fn with_handling(self, handling: Handling) -> Self {
        Self { handling, ..self }
    }

    /// Sets the time that messages along one edge take of their ranks, in both directions.
    #[must_use]
    pub fn with_edge_handling(mut self, edge: Edge, handling: Handling) -> Self {
        self.handlings.insert(edge, handling);
        self
    }

    /// Keeps a rank from sending while so many messages to the same rank haven't been taken, at
    /// least one. By default they queue up without a limit.
    #[must_use]
    pub fn with_queue_limit(self, messages: usize) -> Self {
        Self { queue_limit: Some(messages.max(1)), ..self }
    }

    /// Sets the node of each rank. Messages between nodes pass through a network card that the
    /// ranks of a node share: one after the other, in each direction.
    #[must_use]
    pub fn with_nodes(self, nodes: impl Into<Vec<usize>>) -> Self {
        Self { nodes: nodes.into(), ..self }
    }

    /// Sets the time in which all ranks agree at the end of a training step, before they update.
    #[must_use]
    pub fn with_gathers(self, time: f64) -> Self {
        Self { gathers: time, ..self }
    }

    /// The node of each rank; none if no card is shared.
    #[must_use]
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// The time in which all ranks agree at the end of a training step.
    #[must_use]
    pub fn gathers(&self) -> f64 {
        self.gathers
    }

    /// The messages that may wait on a rank, of each other rank, if that is limited.
    #[must_use]
    pub fn queue_limit(&self) -> Option<usize> {
        self.queue_limit
    }

    /// The time that messages along an edge take of their ranks.
    #[must_use]
    pub fn handling(&self, edge: Edge) -> Handling {
        if self.handlings.is_empty() {
            return self.handling;
        }
        self.handlings.get(&edge).copied().unwrap_or(self.handling)
    }

    /// Whether a rank waits until its message has left.
    #[must_use]
    pub fn blocking_sends(&self) -> bool {
        self.blocking_sends
    }

    /// The link of messages along an edge.
    #[must_use]
    pub fn link(&self, edge: Edge) -> Link {
        // Most models have one link for all, and a million messages.
        if self.links.is_empty() {
            return self.link;
        }
        self.links.get(&edge).copied().unwrap_or(self.link)
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
        let of_stage = self.special.get(action.stage.index());
        let own = of_stage.and_then(|own| own.get(action.micro_batch.index()).copied().flatten());
        let cost = match own {
            Some(place) => &self.own[place as usize],
            None => &self.stages[action.stage.index()],
        };
        cost.time(action.kind) + self.overhead
    }

    /// Checks that there is a usable cost for each of so many stages, and a node for each rank.
    pub(crate) fn check(&self, stages: usize, ranks: usize) -> Result<(), CostError> {
        if self.stages.len() != stages {
            return Err(CostError::Stages { found: self.stages.len(), expected: stages });
        }
        if !self.nodes.is_empty() && self.nodes.len() != ranks {
            return Err(CostError::Nodes { found: self.nodes.len(), expected: ranks });
        }
        let usable = |what: &dyn Fn(&str) -> String, costs: &[(&str, f64)]| match costs
            .iter()
            .find(|(_, v)| !(v.is_finite() && *v >= 0.0))
        {
            Some((name, value)) => Err(CostError::Invalid { what: what(name), value: *value }),
            None => Ok(()),
        };
        let alone =
            [("the overhead per action", self.overhead), ("the gathers' time", self.gathers)];
        usable(&|name| (*name).to_owned(), &alone)?;
        let link = |link: &Link| [("latency", link.latency), ("transfer time", link.transfer)];
        usable(&|name| format!("the link's {name}"), &link(&self.link))?;
        for (edge, own) in &self.links {
            let what = |name: &str| format!("the {name} from stage {} to {}", edge.from, edge.to);
            usable(&what, &link(own))?;
        }
        let handling =
            |handling: &Handling| [("sending", handling.send), ("receiving", handling.receive)];
        usable(&|name| format!("the time for {name}"), &handling(&self.handling))?;
        for (edge, own) in &self.handlings {
            let what =
                |name: &str| format!("the time for {name} between {} and {}", edge.from, edge.to);
            usable(&what, &handling(own))?;
        }
        for (stage, cost) in self.stages.iter().enumerate() {
            usable(&|name| format!("the {name} of stage {stage}"), &cost.named())?;
        }
        for (stage, of_stage) in self.special.iter().enumerate() {
            for (m, place) in of_stage.iter().enumerate() {
                let Some(place) = place else { continue };
                let what = |name: &str| format!("the {name} of stage {stage} for micro-batch {m}");
                usable(&what, &self.own[*place as usize].named())?;
            }
        }
        Ok(())
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
    use crate::{Edges, GPipe, Retention, Schedule, Shape, ZbH1, simulate};

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
    fn split_backwards_cost_what_they_took() {
        let stages = [1.0, 2.0, 3.0].map(|f| StageCost {
            weight_grad: 0.75 * f,
            recompute: 0.0,
            ..StageCost::new(f, 2.0 * f)
        });
        let costs = CostModel::new(stages);
        let plan = ZbH1.plan(Shape::new(3, 4)).expect("a plan");
        let program =
            Program::lower(&plan, &Edges::chain(3), &Retention::keep_all(&plan)).expect("lowers");
        let timeline = simulate(&program, &costs).expect("simulates");
        let measured = CostModel::measured(&[timeline], &program);
        assert!(measured.stages().iter().zip(costs.stages()).all(|(found, expected)| {
            let same = |a: f64, b: f64| (a - b).abs() < 1e-9;
            same(found.backward, expected.backward) && same(found.weight_grad, expected.weight_grad)
        }));
        simulate(&program, &measured).expect("it can be simulated again");
    }

    #[test]
    fn a_median_is_the_middle_value() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn single_micro_batches_have_costs_of_their_own() {
        let (stage, m) = (Stage::new(1), MicroBatch::new(2));
        let own = StageCost::new(5.0, 7.0);
        let costs = CostModel::uniform(2, 1.0, 2.0).with_micro_batch(stage, m, own);
        let time = |stage, m| costs.time(Compute::forward(stage, m));
        assert_eq!((time(stage, m), time(stage, MicroBatch::new(1))), (5.0, 1.0));
        assert_eq!((time(stage, MicroBatch::new(9)), time(Stage::new(0), m)), (1.0, 1.0));
        let wrong = costs.with_micro_batch(stage, m, StageCost::new(-5.0, 7.0));
        let error = wrong.check(2, 2).expect_err("negative").to_string();
        assert!(error.contains("the forward of stage 1 for micro-batch 2 is -5"), "{error}");
    }
}
