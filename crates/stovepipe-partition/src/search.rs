//! The searches behind [`ConstrainedMinimax`](crate::ConstrainedMinimax).
//!
//! Both walk through the same candidates: for a part and its first layer, where the part may end, with
//! its time and its bytes. Sums are taken in layer order, as [`Costs`] says, so the ends of a part are
//! visited in ascending order, and its time without the cut behind it never falls: where that is too
//! much, all longer parts are.

use std::ops::Range;

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
        let (mut sum, mut holds, mut works) = (0.0, 0u64, 0u64);
        if let Some(memory) = self.memory {
            let kept = u64::try_from(memory.in_flight[part]).unwrap_or(u64::MAX);
            holds = memory.layers.get(start).map_or(0, |l| l.entry.saturating_mul(kept));
        }
        (start..last)
            .take_while(move |&layer| self.only[layer].is_none_or(|only| only == part))
            .map(move |layer| {
                sum += self.costs.as_slice()[layer];
                if let Some(memory) = self.memory {
                    let kept = u64::try_from(memory.in_flight[part]).unwrap_or(u64::MAX);
                    let bytes = memory.layers[layer];
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
        let (mut low, mut high) = (0, self.longest().to_bits());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.can_be_dealt(f64::from_bits(middle), room) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        f64::from_bits(high)
    }

    /// Of the partitions with no part above `limit`, the most even one; there must be one.
    fn most_even(&self, limit: f64, room: Room) -> Result<Partition, PartitionError> {
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
        let mut start = 0;
        let sizes: Vec<usize> = choices
            .iter()
            .map(|ends| {
                let size = ends[start] - start;
                start += size;
                size
            })
            .collect();
        Partition::from_sizes(sizes)
    }

    /// Why nothing fits: the cut that comes closest.
    fn misfit(&self) -> PartitionError {
        let Some(memory) = self.memory.filter(|_| self.can_be_dealt(f64::MAX, Room::Unlimited))
        else {
            return PartitionError::NoPartition;
        };
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.can_be_dealt(f64::MAX, Room::Extra(middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let closest = self.most_even(f64::MAX, Room::Extra(high));
        closest.map_or_else(
            |error| error,
            |partition| {
                let needed = memory.needed(&self.placement, partition.ranges());
                PartitionError::DoesNotFit { partition, needed, memory: memory.capacities.clone() }
            },
        )
    }

    /// How long each rank is busy, if the partition respects every constraint.
    fn loads(&self, ranges: &[Range<usize>]) -> Option<Vec<f64>> {
        let mut loads = vec![0.0; self.ranks];
        for (part, range) in ranges.iter().enumerate() {
            let end = self.ends(part, range.start).find(|end| end.end == range.end)?;
            if !self.open[range.end] {
                return None;
            }
            loads[self.rank(part)] += end.time;
        }
        let fits = self.memory.is_none_or(|memory| {
            let needed = memory.needed(&self.placement, ranges.iter().cloned());
            needed.iter().zip(&memory.capacities).all(|(needed, has)| needed <= has)
        });
        fits.then_some(loads)
    }
}

/// The best partition, or the best that was found.
pub(crate) fn solve(parts: &Parts<'_>) -> Result<Solution, PartitionError> {
    let room = Room::Extra(0);
    let alone = parts.can_be_dealt(f64::MAX, room);
    let dealt = |room| {
        let bottleneck = parts.bottleneck(room);
        parts.most_even(bottleneck, room).map(|partition| (partition, bottleneck))
    };
    if parts.count == parts.ranks {
        if !alone {
            return Err(parts.misfit());
        }
        let (partition, bottleneck) = dealt(room)?;
        return Ok(Solution { partition, bottleneck, bound: bottleneck });
    }
    if !parts.can_be_dealt(f64::MAX, Room::Unlimited) {
        return Err(PartitionError::NoPartition);
    }
    let mut shared = Shared::new(parts);
    if alone {
        shared.improve(dealt(room)?.0.ranges().collect());
    }
    let proven = shared.search();
    let Some((bottleneck, _, ends)) = shared.best else { return Err(parts.misfit()) };
    let mut start = 0;
    let sizes: Vec<usize> = ends
        .into_iter()
        .map(|end| {
            let size = end - start;
            start = end;
            size
        })
        .collect();
    // No rank is less busy than its longest part, nor all of them less than the work there is.
    let speed: f64 = (0..parts.ranks).map(|rank| parts.speed(rank)).sum();
    let bound = if proven {
        bottleneck
    } else {
        parts.bottleneck(Room::Unlimited).max(parts.costs.total() / speed).min(bottleneck)
    };
    Ok(Solution { partition: Partition::from_sizes(sizes)?, bottleneck, bound })
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
