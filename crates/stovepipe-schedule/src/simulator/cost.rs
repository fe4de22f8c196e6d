//! The costs of actions and messages, as plain numbers. How they are measured isn't known here.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::program::Program;
use crate::simulator::timeline::Timeline;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::CostError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::message::Edge;

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

    fn time(&self, kind: ComputeKind) -> f64 {
        match kind {
            ComputeKind::Forward => self.forward,
            ComputeKind::Recompute => self.recompute,
            ComputeKind::Backward => self.backward,
            ComputeKind::BackwardInput => self.backward - self.weight_grad,
            ComputeKind::BackwardWeight => self.weight_grad,
        }
    }

    fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("weight gradient", self.weight_grad),
            ("input gradient", self.backward - self.weight_grad),
            ("recomputation", self.recompute),
            ("update", self.update),
        ]
    }
}

/// How long a message takes from one rank to another.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Link {
    /// Time from the end of a transfer until the receiver has the message.
    pub latency: f64,
    /// Time during which one message occupies the link.
    pub transfer: f64,
}

impl Link {
    /// For messages of `bytes` over a link that carries `bandwidth` bytes in a unit of time.
    #[must_use]
    pub fn of_bytes(latency: f64, bytes: f64, bandwidth: f64) -> Self {
        // Nothing takes no time, however slow the link.
        let transfer = if bytes == 0.0 { 0.0 } else { bytes / bandwidth };
        Self { latency, transfer }
    }
}

/// The time that a message takes of its ranks themselves, such as for encoding and decoding it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Handling {
    /// On the rank that sends, before the message is on its link.
    pub send: f64,
    /// On the rank that receives, once the message is there.
    pub receive: f64,
}

/// The cost of every action of a program.
///
/// Unless [communication blocks](Self::with_blocking_sends) or [handling](Self::with_handling)
/// costs time, messages cost their ranks nothing: they occupy the link and arrive later, while the
/// ranks compute on.
#[derive(Clone, PartialEq, Debug)]
pub struct CostModel {
    stages: Vec<StageCost>,
    /// The single micro-batches of a stage that have a cost of their own.
    special: HashMap<(Stage, MicroBatch), StageCost>,
    overhead: f64,
    link: Link,
    /// Edges with a link of their own.
    links: HashMap<Edge, Link>,
    handling: Handling,
    /// Edges whose messages take their own time of their ranks.
    handlings: HashMap<Edge, Handling>,
    blocking_sends: bool,
    queue_limit: Option<usize>,
}

impl CostModel {
    /// One cost per stage, in stage order. Neither overhead nor communication cost anything yet.
    #[must_use]
    pub fn new(stages: impl Into<Vec<StageCost>>) -> Self {
        Self {
            stages: stages.into(),
            special: HashMap::new(),
            overhead: 0.0,
            link: Link::default(),
            links: HashMap::new(),
            handling: Handling::default(),
            handlings: HashMap::new(),
            blocking_sends: false,
            queue_limit: None,
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
        self.special.insert((stage, micro_batch), cost);
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
        let usual = &self.stages[action.stage.index()];
        let cost = if self.special.is_empty() {
            usual
        } else {
            self.special.get(&(action.stage, action.micro_batch)).unwrap_or(usual)
        };
        cost.time(action.kind) + self.overhead
    }

    /// Checks that there is a usable cost for each of `stages` stages.
    pub(crate) fn check(&self, stages: usize) -> Result<(), CostError> {
        if self.stages.len() != stages {
            return Err(CostError::Stages { found: self.stages.len(), expected: stages });
        }
        let usable = |what: &dyn Fn(&str) -> String, costs: &[(&str, f64)]| match costs
            .iter()
            .find(|(_, v)| !(v.is_finite() && *v >= 0.0))
        {
            Some((name, value)) => Err(CostError::Invalid { what: what(name), value: *value }),
            None => Ok(()),
        };
        usable(&|name| (*name).to_owned(), &[("the overhead per action", self.overhead)])?;
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
        for ((stage, m), cost) in &self.special {
            let what = |name: &str| format!("the {name} of stage {stage} for micro-batch {m}");
            usable(&what, &cost.named())?;
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
    use crate::{Edges, ForwardOnly, GPipe, Retention, Schedule, Shape, ZbH1, simulate};

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

    fn forwards(micro_batches: usize) -> Program {
        let plan = ForwardOnly.plan(Shape::new(2, micro_batches)).expect("a plan");
        Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan)).expect("lowers")
    }

    #[test]
    fn values_queue_up_before_a_slow_rank_unless_that_is_limited() {
        let program = forwards(64);
        let costs = CostModel::new([StageCost::new(1.0, 0.0), StageCost::new(51.0, 0.0)].to_vec());
        let free = simulate(&program, &costs).expect("simulates");
        // While the slow rank works on the first, the others arrive.
        assert_eq!((free.most_queued(0), free.most_queued(1)), (0, 62));
        assert_eq!(free.most_queued_bytes(1, |_| 1000), 62_000);
        for limit in [1, 3] {
            let limited = costs.clone().with_queue_limit(limit);
            let bounded = simulate(&program, &limited).expect("simulates");
            assert_eq!(bounded.most_queued(1), limit);
            // The slow rank never waits for it.
            assert_eq!(bounded.makespan(), free.makespan());
        }
    }

    #[test]
    fn handling_takes_its_ranks_time() {
        let program = forwards(3);
        let costs = CostModel::uniform(2, 1.0, 0.0);
        let handling = Handling { send: 0.25, receive: 0.5 };
        let timeline = simulate(&program, &costs.clone().with_handling(handling));
        // The second rank is the slower one: it takes and computes three times.
        assert_eq!(timeline.expect("simulates").makespan(), 1.25 + 3.0 * 1.5);
        let edge = Edge { from: Stage::new(0), to: Stage::new(1) };
        let own = costs.with_edge_handling(edge, handling);
        assert_eq!(simulate(&program, &own).expect("simulates").makespan(), 1.25 + 3.0 * 1.5);
        let negative = own.with_handling(Handling { send: -1.0, receive: 0.0 });
        let error = simulate(&program, &negative).expect_err("refused").to_string();
        assert!(error.contains("the time for sending is -1"), "{error}");
    }

    #[test]
    fn a_limit_that_ranks_wait_for_is_an_error() {
        // Both send twice before they take anything.
        let rows = ["0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"];
        let plan = crate::Plan::parse(rows.map(str::split_whitespace)).expect("valid");
        let program =
            Program::lower(&plan, &Edges::chain(4), &Retention::keep_all(&plan)).expect("lowers");
        let costs = CostModel::uniform(4, 1.0, 2.0);
        simulate(&program, &costs).expect("simulates");
        for limit in 1..4 {
            match simulate(&program, &costs.clone().with_queue_limit(limit)) {
                Ok(timeline) => assert!((0..2).all(|rank| timeline.most_queued(rank) <= limit)),
                Err(error) => assert!(error.to_string().contains("waits for ever"), "{error}"),
            }
        }
    }

    #[test]
    fn a_median_is_the_middle_value() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
