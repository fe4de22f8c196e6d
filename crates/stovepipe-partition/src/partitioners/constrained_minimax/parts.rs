//! The candidates: for a part and its first layer, where the part may end, with its time and its
//! bytes.
//!
//! Sums are taken in layer order, as [`Costs`] says. The ends of a part are visited in ascending
//! order, and its time without the cut behind it never falls: where that is too much, all longer
//! parts are.

use std::ops::Range;

use crate::costs::Costs;
use crate::memory::Memory;

/// The layers to be dealt out, and what constrains it. Everything has been checked.
pub(super) struct Parts<'a> {
    pub(super) costs: &'a Costs,
    pub(super) count: usize,
    pub(super) ranks: usize,
    /// The rank of each part.
    pub(super) placement: Vec<usize>,
    pub(super) speeds: Option<&'a [f64]>,
    pub(super) cut_costs: Option<&'a [f64]>,
    pub(super) memory: Option<&'a Memory>,
    /// Whether the layers may be cut before each layer, and behind the last.
    pub(super) open: Vec<bool>,
    /// The one part that a layer may be in.
    pub(super) only: Vec<Option<usize>>,
}

/// A place where a part may end.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) end: usize,
    /// The time that the part and every longer one take at least.
    pub(super) floor: f64,
    pub(super) time: f64,
    pub(super) holds: u64,
    pub(super) works: u64,
}

impl Parts<'_> {
    pub(super) fn layers(&self) -> usize {
        self.costs.len()
    }

    pub(super) fn rank(&self, part: usize) -> usize {
        self.placement[part]
    }

    pub(super) fn speed(&self, rank: usize) -> f64 {
        self.speeds.map_or(1.0, |speeds| speeds[rank])
    }

    /// The cost of the cut before a layer; nothing at either end of the model.
    fn cut_cost(&self, layer: usize) -> f64 {
        let inner = 0 < layer && layer < self.layers();
        self.cut_costs.filter(|_| inner).map_or(0.0, |costs| costs[layer - 1])
    }

    /// A time that no part can exceed.
    pub(super) fn longest(&self) -> f64 {
        let slowest = (0..self.ranks).map(|rank| self.speed(rank)).fold(f64::INFINITY, f64::min);
        let dearest = self.cut_costs.into_iter().flatten().copied().fold(0.0, f64::max);
        self.costs.total() / slowest + dearest + dearest
    }

    /// The places where a part that begins with a layer may end, as far as pins and the number of
    /// parts before and behind it say, from near to far.
    pub(super) fn ends(&self, part: usize, start: usize) -> impl Iterator<Item = End> {
        let speed = self.speed(self.rank(part));
        let before = self.cut_cost(start);
        let behind = self.count - part - 1;
        let last = self.layers() - behind;
        // A micro-batch's bytes count once for each that the part keeps at once.
        let kept = self.memory.map_or(0, |memory| memory.in_flight[part] as u64);
        let bytes = move |layer: usize| self.memory.and_then(|memory| memory.layers.get(layer));
        let mut holds = bytes(start).map_or(0, |first| first.entry.saturating_mul(kept));
        let (mut sum, mut works) = (0.0, 0u64);
        (start..last)
            .take_while(move |&layer| self.only[layer].is_none_or(|only| only == part))
            .map(move |layer| {
                sum += self.costs.as_slice()[layer];
                if let Some(bytes) = bytes(layer) {
                    holds = holds.saturating_add(bytes.held(kept));
                    works = works.saturating_add(bytes.working);
                }
                let floor = sum / speed + before;
                let time = floor + self.cut_cost(layer + 1);
                End { end: layer + 1, floor, time, holds, works }
            })
            .filter(move |end| behind > 0 || end.end == last)
    }

    /// A part of these layers, if it may be one.
    pub(super) fn end(&self, part: usize, range: &Range<usize>) -> Option<End> {
        self.ends(part, range.start).find(|end| end.end == range.end && self.open[end.end])
    }

    /// The bytes that each rank needs. Its parts work one at a time, so of what they need for that
    /// only the largest counts.
    pub(super) fn needed(&self, parts: impl Iterator<Item = End>) -> Vec<u64> {
        let (mut holds, mut works) = (vec![0u64; self.ranks], vec![0u64; self.ranks]);
        for (end, &rank) in parts.zip(&self.placement) {
            holds[rank] = holds[rank].saturating_add(end.holds);
            works[rank] = works[rank].max(end.works);
        }
        holds.into_iter().zip(works).map(|(held, working)| held.saturating_add(working)).collect()
    }

    /// The time that each rank is busy, if the partition respects every constraint.
    pub(super) fn loads(&self, ranges: &[Range<usize>]) -> Option<Vec<f64>> {
        let ends = ranges.iter().enumerate().map(|(part, range)| self.end(part, range));
        let ends = ends.collect::<Option<Vec<End>>>()?;
        let mut loads = vec![0.0; self.ranks];
        for (end, &rank) in ends.iter().zip(&self.placement) {
            loads[rank] += end.time;
        }
        let fits = self.memory.is_none_or(|memory| {
            let needed = self.needed(ends.into_iter());
            needed.iter().zip(&memory.capacities).all(|(needed, has)| needed <= has)
        });
        fits.then_some(loads)
    }
}
