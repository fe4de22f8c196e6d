//! The search where several parts share a rank: their times add up, and no table exists.

use std::ops::Range;

use super::fitting::Fitting;
use super::parts::Parts;

/// With more parts than these only single cuts are shifted to improve a partition.
const MANY: usize = 40;

/// The search where several parts share a rank: branch and bound in the order of the cuts.
pub(super) struct Shared<'a, 'b> {
    parts: &'a Parts<'b>,
    fitting: Option<&'a Fitting<'a, 'b>>,
    /// The bottleneck, the sum of squared loads and the ends of the parts.
    pub(super) best: Option<(f64, f64, Vec<usize>)>,
    budget: usize,
    ends: Vec<usize>,
    loads: Vec<f64>,
    holds: Vec<u64>,
    works: Vec<u64>,
}

impl<'a, 'b> Shared<'a, 'b> {
    pub(super) fn new(parts: &'a Parts<'b>, fitting: Option<&'a Fitting<'a, 'b>>) -> Self {
        Self {
            parts,
            fitting,
            best: None,
            budget: 0,
            ends: Vec::with_capacity(parts.count),
            loads: vec![0.0; parts.ranks],
            holds: vec![0; parts.ranks],
            works: vec![0; parts.ranks],
        }
    }

    /// Takes a partition as the best so far, after shifting cuts, alone or several in a row, for as
    /// long as that helps.
    pub(super) fn improve(&mut self, mut ranges: Vec<Range<usize>>) {
        let value = |ranges: &[Range<usize>]| {
            let loads = self.parts.loads(ranges)?;
            Some((loads.iter().copied().fold(0.0, f64::max), squares(&loads)))
        };
        let Some(mut best) = value(&ranges) else { return };
        // Rows of cuts hand a layer's worth to a part far away.
        let longest_row = if ranges.len() <= MANY { ranges.len() } else { 1 };
        let mut improved = true;
        while improved {
            improved = false;
            for first in 1..ranges.len() {
                for last in first..ranges.len().min(first + longest_row) {
                    for back in [true, false] {
                        let moved = shifted(&ranges, first, last, back);
                        let found = moved.and_then(|moved| Some((value(&moved)?, moved)));
                        if let Some((found, moved)) = found.filter(|(found, _)| *found < best) {
                            (best, ranges, improved) = (found, moved, true);
                            break;
                        }
                    }
                }
            }
        }
        self.best = Some((best.0, best.1, ranges.iter().map(|range| range.end).collect()));
    }

    /// Looks at so many candidates at most. Returns whether these were all.
    pub(super) fn search(&mut self, budget: usize) -> bool {
        self.budget = budget;
        self.descend(0, self.parts.costs.total());
        self.budget > 0
    }

    fn descend(&mut self, start: usize, left: f64) {
        let part = self.ends.len();
        if part == self.parts.count {
            let bottleneck = self.loads.iter().copied().fold(0.0, f64::max);
            let squares = squares(&self.loads);
            if self.best.as_ref().is_none_or(|best| (bottleneck, squares) < (best.0, best.1)) {
                self.best = Some((bottleneck, squares, self.ends.clone()));
            }
            return;
        }
        if self.leaves_too_little(left) || self.leaves_too_much(start) {
            return;
        }
        let rank = self.parts.rank(part);
        let (load, held, working) = (self.loads[rank], self.holds[rank], self.works[rank]);
        let capacity = self.parts.memory.map_or(u64::MAX, |memory| memory.capacities[rank]);
        let mut done = 0.0;
        let mut from = start;
        let parts = self.parts;
        for end in parts.ends(part, start) {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            let limit = self.best.as_ref().map_or(f64::INFINITY, |best| best.0);
            let holds = held.saturating_add(end.holds);
            let works = working.max(end.works);
            if load + end.floor > limit || holds.saturating_add(works) > capacity {
                break;
            }
            done += self.parts.costs.sum(from..end.end);
            from = end.end;
            if !self.parts.open[end.end] || load + end.time > limit {
                continue;
            }
            (self.loads[rank], self.holds[rank], self.works[rank]) =
                (load + end.time, holds, works);
            self.ends.push(end.end);
            self.descend(end.end, left - done);
            self.ends.pop();
        }
        (self.loads[rank], self.holds[rank], self.works[rank]) = (load, held, working);
    }

    /// Whether the ranks can't hold the layers from `start` on.
    fn leaves_too_much(&self, start: usize) -> bool {
        let Some((fitting, memory)) = self.fitting.zip(self.parts.memory) else { return false };
        let room = memory.capacities.iter().zip(&self.holds);
        let room: u128 = room.map(|(has, held)| u128::from(has.saturating_sub(*held))).sum();
        fitting.least(start..self.parts.layers()) > room
    }

    /// Whether the ranks can't take the work that is left without being busier than in the best
    /// partition so far.
    fn leaves_too_little(&self, left: f64) -> bool {
        let Some((limit, ..)) = self.best else { return false };
        let room: f64 = self
            .loads
            .iter()
            .enumerate()
            .map(|(rank, load)| (limit - load).max(0.0) * self.parts.speed(rank))
            .sum();
        // With a margin for rounding.
        left * (1.0 - 1e-9) > room
    }
}

/// Shifts cuts in a row by one layer, if every part keeps a layer.
fn shifted(
    ranges: &[Range<usize>],
    first: usize,
    last: usize,
    back: bool,
) -> Option<Vec<Range<usize>>> {
    let mut moved = ranges.to_vec();
    for cut in first..=last {
        let at = moved[cut].start;
        let to = if back { at - 1 } else { at + 1 };
        moved[cut - 1].end = to;
        moved[cut].start = to;
    }
    (!moved[first - 1].is_empty() && !moved[last].is_empty()).then_some(moved)
}

fn squares(loads: &[f64]) -> f64 {
    loads.iter().map(|load| load * load).sum()
}
