//! Along which pairs of stages values travel: the chain of neighbours, and skips.

use crate::words::error::PlanError;
use crate::words::ids::Stage;
use crate::words::message::Edge;

/// All edges of a model cut into stages. Every stage is joined to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edges {
    stages: usize,
    /// By source, then by destination.
    skips: Vec<Edge>,
    /// The same by destination, then by source.
    by_end: Vec<Edge>,
    /// The first stage that takes gradients.
    first_trained: Stage,
}

impl Edges {
    /// Stage 0 → 1 → 2 → … and nothing else.
    #[must_use]
    pub fn chain(stages: usize) -> Self {
        Self { stages, skips: Vec::new(), by_end: Vec::new(), first_trained: Stage::new(0) }
    }

    /// Adds a direct edge between two stages that aren't neighbours.
    ///
    /// Adding one twice changes nothing: an edge carries everything that its two stages exchange.
    ///
    /// # Errors
    ///
    /// [`PlanError::Edge`] if it doesn't go up by at least two stages or ends beyond the last.
    pub fn with_skip(mut self, from: Stage, to: Stage) -> Result<Self, PlanError> {
        if to.index() >= self.stages || from.index() + 2 > to.index() {
            return Err(PlanError::Edge { from, to, stages: self.stages });
        }
        let edge = Edge { from, to };
        if let Err(place) = self.skips.binary_search(&edge) {
            self.skips.insert(place, edge);
            let place = self.by_end.partition_point(|e| (e.to, e.from) < (to, from));
            self.by_end.insert(place, edge);
        }
        Ok(self)
    }

    /// Lets no gradients travel to the stages before `stage`, because nothing in them trains.
    ///
    /// Their backwards stay in plans, and neither wait for anything nor send anything.
    #[must_use]
    pub fn without_gradients_before(self, stage: Stage) -> Self {
        Self { first_trained: stage, ..self }
    }

    /// Whether a gradient travels back along an edge.
    #[must_use]
    pub fn carries_gradient(&self, edge: &Edge) -> bool {
        edge.from >= self.first_trained
    }

    /// How many stages the edges join.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The edges into `stage`, by ascending source.
    pub fn incoming(&self, stage: Stage) -> impl Iterator<Item = Edge> + '_ {
        let previous =
            stage.index().checked_sub(1).map(|i| Edge { from: Stage::new(i), to: stage });
        // A skip starts below the neighbour, so the neighbour's edge is always the last.
        let first = self.by_end.partition_point(|e| e.to < stage);
        self.by_end[first..].iter().copied().take_while(move |e| e.to == stage).chain(previous)
    }

    /// The edges out of `stage`, by ascending destination.
    pub fn outgoing(&self, stage: Stage) -> impl Iterator<Item = Edge> + '_ {
        let next = stage.index() + 1;
        let next = (next < self.stages).then(|| Edge { from: stage, to: Stage::new(next) });
        let first = self.skips.partition_point(|e| e.from < stage);
        next.into_iter()
            .chain(self.skips[first..].iter().copied().take_while(move |e| e.from == stage))
    }

    /// Number of edges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stages.saturating_sub(1) + self.skips.len()
    }

    /// Whether there is only one stage.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place of an edge among all of them: first the chain's, then the skips.
    #[must_use]
    pub fn index(&self, edge: Edge) -> Option<usize> {
        if edge.to.index() >= self.stages {
            None
        } else if edge.from.index() + 1 == edge.to.index() {
            Some(edge.from.index())
        } else {
            self.skips.binary_search(&edge).ok().map(|skip| self.stages - 1 + skip)
        }
    }

    /// Whether a value travels from `from` to `to`.
    #[must_use]
    pub fn contains(&self, from: Stage, to: Stage) -> bool {
        self.index(Edge { from, to }).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_listed_in_stage_order() {
        let s = Stage::new;
        let edges = Edges::chain(4).with_skip(s(0), s(3)).and_then(|e| e.with_skip(s(1), s(3)));
        let edges = edges.expect("legal skips");
        let from: Vec<_> = edges.incoming(s(3)).map(|e| e.from.index()).collect();
        assert_eq!(from, [0, 1, 2]);
        let to: Vec<_> = edges.outgoing(s(0)).map(|e| e.to.index()).collect();
        assert_eq!(to, [1, 3]);
        assert_eq!(edges.incoming(s(0)).count() + edges.outgoing(s(3)).count(), 0);
        assert!(
            edges.contains(s(0), s(3)) && edges.contains(s(2), s(3)) && !edges.contains(s(0), s(2))
        );
    }

    #[test]
    fn gradients_end_where_training_begins() {
        let s = Stage::new;
        let edges = Edges::chain(4).with_skip(s(0), s(2)).and_then(|e| e.with_skip(s(1), s(3)));
        let edges = edges.expect("legal skips").without_gradients_before(s(1));
        let carry = |stage| edges.incoming(s(stage)).map(|e| edges.carries_gradient(&e));
        assert_eq!(carry(1).collect::<Vec<_>>(), [false]);
        assert_eq!(carry(2).collect::<Vec<_>>(), [false, true]);
        assert_eq!(carry(3).collect::<Vec<_>>(), [true, true]);
    }

    #[test]
    fn a_skip_goes_up_by_at_least_two_stages() {
        let s = Stage::new;
        for (from, to) in [(0, 1), (2, 1), (1, 1), (0, 4)] {
            assert!(Edges::chain(4).with_skip(s(from), s(to)).is_err(), "{from} to {to}");
        }
    }
}
