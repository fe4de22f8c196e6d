//! The search where several parts share a rank: their times add up, and no table exists.

use std::ops::Range;

use super::parts::Parts;

/// How many candidates are looked at.
const BUDGET: usize = 1_000_000;

/// The search where several parts share a rank: branch and bound in the order of the cuts.
pub(super) struct Shared<'a, 'b> {
    parts: &'a Parts<'b>,
    /// The bottleneck, the sum of squared loads and the ends of the parts.
    pub(super) best: Option<(f64, f64, Vec<usize>)>,
    budget: usize,
    ends: Vec<usize>,
    loads: Vec<f64>,
    holds: Vec<u64>,
    works: Vec<u64>,
}

impl<'a, 'b> Shared<'a, 'b> {
    pub(super) fn new(parts: &'a Parts<'b>) -> Self {
        Self {
            parts,
            best: None,
            budget: BUDGET,
            ends: Vec::with_capacity(parts.count),
            loads: vec![0.0; parts.ranks],
            holds: vec![0; parts.ranks],
            works: vec![0; parts.ranks],
        }
    }

    /// Takes a partition as the best so far, after shifting single cuts for as long as that helps.
    pub(super) fn improve(&mut self, mut ranges: Vec<Range<usize>>) {
        let value = |ranges: &[Range<usize>]| {
            let loads = self.parts.loads(ranges)?;
            Some((loads.iter().copied().fold(0.0, f64::max), squares(&loads)))
        };
        let Some(mut best) = value(&ranges) else { return };
        let mut improved = true;
        while improved {
            improved = false;
            for cut in 1..ranges.len() {
                let at = ranges[cut].start;
                for to in [at - 1, at + 1] {
                    if to <= ranges[cut - 1].start || to >= ranges[cut].end {
                        continue;
                    }
                    let mut moved = ranges.clone();
                    moved[cut - 1].end = to;
                    moved[cut].start = to;
                    if let Some(found) = value(&moved).filter(|found| *found < best) {
                        (best, ranges, improved) = (found, moved, true);
                        break;
                    }
                }
            }
        }
        self.best = Some((best.0, best.1, ranges.iter().map(|range| range.end).collect()));
    }

    /// Whether the search came to its end.
    pub(super) fn search(&mut self) -> bool {
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
        if self.leaves_too_little(left) {
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

fn squares(loads: &[f64]) -> f64 {
    loads.iter().map(|load| load * load).sum()
}
