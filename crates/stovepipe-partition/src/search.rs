//! The searches behind [`ConstrainedMinimax`](crate::ConstrainedMinimax).
//!
//! Both walk through the same candidates: for a part and its first layer, where the part may end, with
//! its time and its bytes. Sums are taken in layer order, as [`Costs`] says, so the ends of a part are
//! visited in ascending order, and its time without the cut behind it never falls: where that is too
//! much, all longer parts are.

use std::ops::Range;

use crate::halving::{smallest, smallest_cost};
use crate::{Costs, Memory, Partition, PartitionError, Solution};

/// How many candidates are looked at where several parts share a rank.
const BUDGET: usize = 1_000_000;

/// The layers to be dealt out, and what constrains it. Everything has been checked.
pub(crate) struct Parts<'a> {
    pub(crate) costs: &'a Costs,
    pub(crate) count: usize,
    pub(crate) ranks: usize,
    /// The rank of each part.
    pub(crate) placement: Vec<usize>,
    pub(crate) speeds: Option<&'a [f64]>,
    pub(crate) cut_costs: Option<&'a [f64]>,
    pub(crate) memory: Option<&'a Memory>,
    /// Whether the layers may be cut before each layer, and behind the last.
    pub(crate) open: Vec<bool>,
    /// The one part that a layer may be in.
    pub(crate) only: Vec<Option<usize>>,
}

/// A place where a part may end.
#[derive(Clone, Copy)]
struct End {
    end: usize,
    /// What the part and every longer one take at least.
    floor: f64,
    time: f64,
    holds: u64,
    works: u64,
}

/// How much memory a rank may have beyond its capacity.
#[derive(Clone, Copy)]
enum Room {
    /// This much.
    Extra(u64),
    /// Any amount.
    Unlimited,
}

impl Parts<'_> {
    fn layers(&self) -> usize {
        self.costs.len()
    }

    fn rank(&self, part: usize) -> usize {
        self.placement[part]
    }

    fn speed(&self, rank: usize) -> f64 {
        self.speeds.map_or(1.0, |speeds| speeds[rank])
    }

    /// What the cut before a layer costs; nothing at either end of the model.
    fn cut_cost(&self, layer: usize) -> f64 {
        let inner = 0 < layer && layer < self.layers();
        self.cut_costs.filter(|_| inner).map_or(0.0, |costs| costs[layer - 1])
    }

    /// A time that no part can exceed.
    pub(crate) fn longest(&self) -> f64 {
        let slowest = (0..self.ranks).map(|rank| self.speed(rank)).fold(f64::INFINITY, f64::min);
        let dearest = self.cut_costs.into_iter().flatten().copied().fold(0.0, f64::max);
        self.costs.total() / slowest + dearest + dearest
    }

    /// Where a part that begins with a layer may end as far as pins and the number of parts before and
    /// behind it say, from near to far.
    fn ends(&self, part: usize, start: usize) -> impl Iterator<Item = End> {
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
                    holds = holds
                        .saturating_add(bytes.fixed)
                        .saturating_add(bytes.kept.saturating_mul(kept));
                    works = works.saturating_add(bytes.working);
                }
                let floor = sum / speed + before;
                let time = floor + self.cut_cost(layer + 1);
                End { end: layer + 1, floor, time, holds, works }
            })
            .filter(move |end| behind > 0 || end.end == last)
    }

    /// The same where each part has its rank's memory, or its share of it, to itself.
    fn ends_alone(&self, part: usize, start: usize, room: Room) -> impl Iterator<Item = End> {
        let capacity = match (self.memory, room) {
            (Some(memory), Room::Extra(extra)) => {
                let rank = self.rank(part);
                let sharing = self.placement.iter().filter(|&&other| other == rank).count();
                let all = memory.capacities[rank].saturating_add(extra);
                all / u64::try_from(sharing).unwrap_or(u64::MAX)
            }
            _ => u64::MAX,
        };
        self.ends(part, start).take_while(move |e| e.holds.saturating_add(e.works) <= capacity)
    }

    /// Whether the layers can be dealt out with no part above `limit`.
    fn can_be_dealt(&self, limit: f64, room: Room) -> bool {
        let mut starts = vec![false; self.layers() + 1];
        starts[0] = true;
        for part in 0..self.count {
            let mut next = vec![false; self.layers() + 1];
            for start in (0..self.layers()).filter(|&start| starts[start]) {
                for end in self.ends_alone(part, start, room).take_while(|e| e.floor <= limit) {
                    next[end.end] |= self.open[end.end] && end.time <= limit;
                }
            }
            starts = next;
        }
        starts[self.layers()]
    }

    /// The smallest time within which every part can be; there must be one.
    fn bottleneck(&self, room: Room) -> f64 {
        smallest_cost(0.0, self.longest(), |limit| self.can_be_dealt(limit, room))
    }

    /// Of the partitions with no part above `limit`, the most even one; there must be one.
    fn most_even(&self, limit: f64, room: Room) -> Partition {
        let layers = self.layers();
        // A power of two that keeps the squares in range.
        let exponent = if limit > 0.0 { limit.log2().floor().clamp(-1000.0, 1000.0) } else { 0.0 };
        let scale = (-exponent).exp2();
        // For each tail of the layers, the squares of the parts that are still to come.
        let mut below = vec![f64::INFINITY; layers + 1];
        below[layers] = 0.0;
        let mut choices = vec![vec![layers; layers + 1]; self.count];
        for part in (0..self.count).rev() {
            let mut squares = vec![f64::INFINITY; layers + 1];
            for start in part..layers {
                for end in self.ends_alone(part, start, room).take_while(|e| e.floor <= limit) {
                    let total = (end.time * scale).powi(2) + below[end.end];
                    // Strictly, so that of equal ones the earliest stays.
                    if self.open[end.end] && end.time <= limit && total < squares[start] {
                        squares[start] = total;
                        choices[part][start] = end.end;
                    }
                }
            }
            below = squares;
        }
        let ends = choices.iter().scan(0, |start, ends| {
            *start = ends[*start];
            Some(*start)
        });
        Partition::from_ends(ends.collect())
    }

    /// Why nothing fits: the cut that comes closest.
    fn misfit(&self) -> PartitionError {
        let Some(memory) = self.memory.filter(|_| self.can_be_dealt(f64::MAX, Room::Unlimited))
        else {
            return PartitionError::NoPartition;
        };
        let extra = smallest(0, u64::MAX, |extra| self.can_be_dealt(f64::MAX, Room::Extra(extra)));
        let partition = self.most_even(f64::MAX, Room::Extra(extra));
        let ends =
            partition.ranges().enumerate().filter_map(|(part, range)| self.end(part, &range));
        let needed = self.needed(ends);
        PartitionError::DoesNotFit { partition, needed, memory: memory.capacities.clone() }
    }

    /// A part of these layers, if it may be one.
    fn end(&self, part: usize, range: &Range<usize>) -> Option<End> {
        self.ends(part, range.start).find(|end| end.end == range.end && self.open[end.end])
    }

    /// The bytes that each rank needs. Its parts work one at a time, so of what they need for that only
    /// the largest counts.
    fn needed(&self, parts: impl Iterator<Item = End>) -> Vec<u64> {
        let (mut holds, mut works) = (vec![0u64; self.ranks], vec![0u64; self.ranks]);
        for (end, &rank) in parts.zip(&self.placement) {
            holds[rank] = holds[rank].saturating_add(end.holds);
            works[rank] = works[rank].max(end.works);
        }
        holds.into_iter().zip(works).map(|(held, working)| held.saturating_add(working)).collect()
    }

    /// How long each rank is busy, if the partition respects every constraint.
    fn loads(&self, ranges: &[Range<usize>]) -> Option<Vec<f64>> {
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

/// The best partition, or the best that was found.
pub(crate) fn solve(parts: &Parts<'_>) -> Result<Solution, PartitionError> {
    let room = Room::Extra(0);
    let alone = parts.can_be_dealt(f64::MAX, room);
    let dealt = || {
        let bottleneck = parts.bottleneck(room);
        (parts.most_even(bottleneck, room), bottleneck)
    };
    if parts.count == parts.ranks {
        if !alone {
            return Err(parts.misfit());
        }
        let (partition, bottleneck) = dealt();
        return Ok(Solution { partition, bottleneck, bound: bottleneck });
    }
    if !parts.can_be_dealt(f64::MAX, Room::Unlimited) {
        return Err(PartitionError::NoPartition);
    }
    let mut shared = Shared::new(parts);
    if alone {
        shared.improve(dealt().0.ranges().collect());
    }
    let proven = shared.search();
    let Some((bottleneck, _, ends)) = shared.best else { return Err(parts.misfit()) };
    // No rank is less busy than its longest part, nor all of them less than the work there is.
    let speed: f64 = (0..parts.ranks).map(|rank| parts.speed(rank)).sum();
    let bound = if proven {
        bottleneck
    } else {
        parts.bottleneck(Room::Unlimited).max(parts.costs.total() / speed).min(bottleneck)
    };
    Ok(Solution { partition: Partition::from_ends(ends), bottleneck, bound })
}

/// The search where several parts share a rank: branch and bound in the order of the cuts.
struct Shared<'a, 'b> {
    parts: &'a Parts<'b>,
    /// The bottleneck, the sum of squared loads and the ends of the parts.
    best: Option<(f64, f64, Vec<usize>)>,
    budget: usize,
    ends: Vec<usize>,
    loads: Vec<f64>,
    holds: Vec<u64>,
    works: Vec<u64>,
}

impl<'a, 'b> Shared<'a, 'b> {
    fn new(parts: &'a Parts<'b>) -> Self {
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
    fn improve(&mut self, mut ranges: Vec<Range<usize>>) {
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
    fn search(&mut self) -> bool {
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
