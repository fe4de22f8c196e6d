//! Timelines: programs with times, predicted or measured, and what is read off them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Action, ComputeKind};

/// One action with its start and end.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// What ran. A receive's span is the time the rank waited for the message.
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

/// What each rank did when. The simulator's unit is that of its costs; the executor measures seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timeline {
    ranks: Vec<Vec<Span>>,
    updates: Vec<Option<Range<f64>>>,
}

impl Timeline {
    /// From the spans of each rank in order, and the time of its optimizer step if there was one.
    #[must_use]
    pub fn new(ranks: Vec<Vec<Span>>, updates: Vec<Option<Range<f64>>>) -> Self {
        Self { ranks, updates }
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
        let actions = self.ranks.iter().flatten().map(|span| span.end);
        let updates = self.updates.iter().flatten().map(|update| update.end);
        actions.chain(updates).fold(0.0, f64::max)
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

    /// Spans of compute actions of one kind on one stage.
    pub fn durations(&self, stage: crate::Stage, kind: ComputeKind) -> impl Iterator<Item = f64> {
        self.ranks.iter().flatten().filter_map(move |span| {
            let compute = span.action.compute()?;
            (compute.stage == stage && compute.kind == kind).then(|| span.duration())
        })
    }

    pub(crate) fn compute_spans(&self, rank: usize) -> impl Iterator<Item = &Span> {
        self.ranks[rank].iter().filter(|span| span.action.compute().is_some())
    }
}
