//! Timelines: programs with times, predicted or measured, and the figures that follow from them.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::words::action::Action;
use crate::words::compute::ComputeKind;
use crate::words::ids::{Rank, Stage};

/// One action with its start and end.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The action. A receive's span is the time the rank waited for the message.
    pub action: Action,
    /// When it started, counted from the start of the step.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

impl Span {
    /// End minus start.
    #[must_use]
    pub fn duration(&self) -> f64 {
        self.end - self.start
    }
}

/// When each rank did what. The simulator's unit is that of its costs; the executor measures
/// seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "Record", into = "Record")]
pub struct Timeline {
    ranks: Vec<Vec<Span>>,
    updates: Vec<Option<Range<f64>>>,
    makespan: f64,
}

/// The serialized form of a timeline.
#[derive(Serialize, Deserialize)]
struct Record {
    ranks: Vec<Vec<Span>>,
    updates: Vec<Option<Range<f64>>>,
}

impl From<Record> for Timeline {
    fn from(record: Record) -> Self {
        Self::new(record.ranks, record.updates)
    }
}

impl From<Timeline> for Record {
    fn from(Timeline { ranks, updates, .. }: Timeline) -> Self {
        Self { ranks, updates }
    }
}

impl Timeline {
    /// From the spans of each rank in order, and the time of its optimizer step if there was one.
    #[must_use]
    pub fn new(ranks: Vec<Vec<Span>>, updates: Vec<Option<Range<f64>>>) -> Self {
        // A rank's spans are in order, so its last ends last.
        let actions = ranks.iter().filter_map(|spans| spans.last()).map(|span| span.end);
        let ends = actions.chain(updates.iter().flatten().map(|update| update.end));
        let makespan = ends.fold(0.0, f64::max);
        Self { ranks, updates, makespan }
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The spans of one rank.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn spans(&self, rank: usize) -> &[Span] {
        &self.ranks[rank]
    }

    /// The optimizer step of one rank.
    #[must_use]
    pub fn update(&self, rank: usize) -> Option<Range<f64>> {
        self.updates.get(rank).cloned().flatten()
    }

    /// From the start of the step to the end of its last action, update included.
    #[must_use]
    pub fn makespan(&self) -> f64 {
        self.makespan
    }

    /// Time in which `rank` computed, update included.
    #[must_use]
    pub fn busy(&self, rank: usize) -> f64 {
        let computed = self.compute_spans(rank).map(Span::duration).sum::<f64>();
        computed + self.update(rank).map_or(0.0, |update| update.end - update.start)
    }

    /// Time between the step's start and end in which `rank` didn't compute.
    #[must_use]
    pub fn idle(&self, rank: usize) -> f64 {
        self.makespan() - self.busy(rank)
    }

    /// Idle time divided by total time, over all ranks; `None` if the step took no time.
    ///
    /// (Megatron-LM divides by the useful time instead.)
    #[must_use]
    pub fn bubble(&self) -> Option<f64> {
        let total = self.makespan() * self.ranks() as f64;
        let idle: f64 = (0..self.ranks()).map(|rank| self.idle(rank)).sum();
        (total > 0.0).then(|| idle / total)
    }

    /// Idle time of one rank divided by the step's time; `None` if the step took no time.
    #[must_use]
    pub fn rank_bubble(&self, rank: usize) -> Option<f64> {
        let total = self.makespan();
        (total > 0.0).then(|| self.idle(rank) / total)
    }

    /// Busy time divided by total time, over all ranks; `None` if the step took no time.
    #[must_use]
    pub fn utilization(&self) -> Option<f64> {
        self.bubble().map(|bubble| 1.0 - bubble)
    }

    /// A chain of actions without a gap, first to last, that the end of the flush waits for. Each
    /// action begins when the one before it ends: on the same rank, or with a message that a
    /// receive waited for. Shortening anything else doesn't shorten the step.
    ///
    /// Holds compute actions, and messages where they took time. The update, which follows the
    /// flush on every rank, is not part of it.
    #[must_use]
    pub fn critical_path(&self) -> Vec<(Rank, Span)> {
        let mut rank_of = HashMap::new();
        for (rank, spans) in self.ranks.iter().enumerate() {
            let stages = spans.iter().filter_map(|span| span.action.compute()).map(|c| c.stage);
            rank_of.extend(stages.map(|stage| (stage, rank)));
        }
        let end = |rank: &usize| self.ranks[*rank].last().map_or(f64::NEG_INFINITY, |s| s.end);
        let mut path = Vec::new();
        let Some(mut rank) = (0..self.ranks()).max_by(|a, b| end(a).total_cmp(&end(b))) else {
            return path;
        };
        // How much of each row is still before the path's start. It only shrinks: in a timeline
        // whose messages wait for each other, which can't have run, the path ends there.
        let mut before_path: Vec<usize> = self.ranks.iter().map(Vec::len).collect();
        let mut left = before_path[rank];
        while let Some(span) = left.checked_sub(1).map(|last| self.ranks[rank][last]) {
            let acting = Rank::new(rank);
            left -= 1;
            before_path[rank] = left;
            let mut step = span;
            if let Action::Recv(message) = span.action {
                let sender = rank_of.get(&message.from).filter(|_| span.duration() > 0.0);
                let place = sender.and_then(|&sender| {
                    let row = &self.ranks[sender];
                    let before = row.partition_point(|s| s.start <= span.end);
                    let send = Action::Send(message);
                    let place = row[..before].iter().rposition(|s| s.action == send)?;
                    (place < before_path[sender]).then_some((sender, place))
                });
                if let Some((sender, place)) = place {
                    // While the message was on its way, not while its sender was still computing.
                    step.start = self.ranks[sender][place].end;
                    (rank, left) = (sender, place + 1);
                }
            }
            if step.action.compute().is_some() || step.duration() > 0.0 {
                path.push((acting, step));
            }
        }
        path.reverse();
        path
    }

    /// Spans of compute actions of one kind on one stage.
    pub fn durations(&self, stage: Stage, kind: ComputeKind) -> impl Iterator<Item = f64> {
        self.ranks.iter().flatten().filter_map(move |span| {
            let compute = span.action.compute()?;
            (compute.stage == stage && compute.kind == kind).then(|| span.duration())
        })
    }

    pub(crate) fn compute_spans(&self, rank: usize) -> impl Iterator<Item = &Span> {
        self.ranks[rank].iter().filter(|span| span.action.compute().is_some())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Action, Compute, CostModel, Direction, Edges, GPipe, Link, Message, MicroBatch, Program,
        Retention, Schedule, Shape, Span, Stage, StageCost, Timeline, simulate,
    };

    fn path(costs: &CostModel, micro_batches: usize) -> (Vec<String>, f64, f64) {
        let stages = costs.stages().len();
        let plan = GPipe::default().plan(Shape::new(stages, micro_batches)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(stages), &Retention::keep_all(&plan));
        let timeline = simulate(&program.expect("lowers"), costs).expect("simulates");
        let path = timeline.critical_path();
        let length = path.iter().map(|(_, span)| span.duration()).sum();
        (path.iter().map(|(_, s)| s.action.to_string()).collect(), length, timeline.makespan())
    }

    #[test]
    fn the_critical_path_is_as_long_as_the_step_and_passes_the_slowest_stage() {
        let times = [1.0, 1.0, 2.0, 1.0];
        let costs = CostModel::new(times.map(|t| StageCost::new(t, t)));
        let (path, length, makespan) = path(&costs, 2);
        let expected = ["0F0", "1F0", "2F0", "2F1", "3F1", "3B1", "2B1", "2B0", "1B0", "0B0"];
        assert_eq!(path, expected);
        assert_eq!(length, makespan);
    }

    #[test]
    fn the_path_of_a_timeline_that_cannot_be_ends() {
        let s = Stage::new;
        let message = |direction, from, to| Message {
            direction,
            from: s(from),
            to: s(to),
            micro_batch: MicroBatch::new(0),
        };
        let (up, down) = (message(Direction::Forward, 0, 1), message(Direction::Backward, 1, 0));
        // Each rank sends at the very moment at which it receives what the other sends.
        let row = |received, sent, stage| {
            let forward = Compute::forward(s(stage), MicroBatch::new(0)).into();
            let span = |action, start, end| Span { action, start, end };
            let (received, sent) = (Action::Recv(received), Action::Send(sent));
            vec![
                span(sent, 1.0, 1.0),
                span(received, 0.0, 1.0),
                span(sent, 1.0, 1.0),
                span(forward, 1.0, 2.0),
            ]
        };
        let timeline = Timeline::new(vec![row(down, up, 0), row(up, down, 1)], vec![None, None]);
        assert!(timeline.critical_path().len() <= 8);
    }

    #[test]
    fn messages_that_take_time_are_on_the_path() {
        let costs =
            CostModel::uniform(2, 1.0, 1.0).with_link(Link { latency: 0.5, transfer: 0.25 });
        let (path, length, makespan) = path(&costs, 1);
        assert_eq!(path, ["0F0", "1RECV_F0", "1F0", "1B0", "0RECV_B0", "0B0"]);
        assert_eq!((length, makespan), (5.5, 5.5));
    }
}
