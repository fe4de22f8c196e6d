//! The exact search, where each part has a rank, or a share of one, to itself.
//!
//! It goes over (part, first layer) for the smallest time under which the layers can be dealt out,
//! and once more for the most even partition within that time.

use super::parts::{End, Parts};
use crate::error::PartitionError;
use crate::halving::smallest;
use crate::partition::Partition;

/// The memory that a rank may have beyond its capacity.
#[derive(Clone, Copy)]
pub(super) enum Room {
    /// This much.
    Extra(u64),
    /// Any amount.
    Unlimited,
}

impl Parts<'_> {
    /// The memory that a part has to itself: its rank's, or its share of it.
    fn capacity(&self, part: usize, room: Room) -> u64 {
        match (self.memory, room) {
            (Some(memory), Room::Extra(extra)) => {
                let rank = self.rank(part);
                let sharing = self.placement.iter().filter(|&&other| other == rank).count();
                let all = memory.capacities[rank].saturating_add(extra);
                all / u64::try_from(sharing).unwrap_or(u64::MAX)
            }
            _ => u64::MAX,
        }
    }

    /// The places where a part that begins with a layer may end, within so much memory.
    fn ends_alone(&self, part: usize, start: usize, capacity: u64) -> impl Iterator<Item = End> {
        self.ends(part, start).take_while(move |e| e.holds.saturating_add(e.works) <= capacity)
    }

    /// Whether the layers can be dealt out with no part above `limit`.
    pub(super) fn can_be_dealt(&self, limit: f64, room: Room) -> bool {
        self.least_bottleneck(limit, room).is_some()
    }

    /// The time of the longest part in the partition in which that is shortest, if it is up to
    /// `limit`.
    fn least_bottleneck(&self, limit: f64, room: Room) -> Option<f64> {
        let layers = self.layers();
        let earliest = self.earliest_starts(limit, room);
        if earliest[0] > 0 {
            return None;
        }
        // For each first layer of a part, the longest part before it at best.
        let mut least = vec![f64::INFINITY; layers + 1];
        let mut next = least.clone();
        least[0] = 0.0;
        // Where the first and the last are that can be reached.
        let mut window = 0..1;
        for part in 0..self.count {
            let mut reached = layers + 1..0;
            let capacity = self.capacity(part, room);
            for start in window.clone().filter(|&start| start < layers) {
                let before = least[start];
                if before == f64::INFINITY {
                    continue;
                }
                let ends = self.ends_alone(part, start, capacity);
                for end in ends.take_while(|e| e.floor <= limit) {
                    let suffices = end.end >= earliest[part + 1];
                    if suffices && self.open[end.end] && end.time <= limit {
                        next[end.end] = next[end.end].min(before.max(end.time));
                        reached = reached.start.min(end.end)..reached.end.max(end.end + 1);
                    }
                }
            }
            if reached.is_empty() {
                return None;
            }
            least[window].fill(f64::INFINITY);
            (least, next) = (next, least);
            window = reached;
        }
        Some(least[layers]).filter(|bottleneck| bottleneck.is_finite())
    }

    /// For each part and behind the last, the first layer that it may begin with: it and those
    /// behind it have to take all the rest. Each takes layers up to `limit` and up to its memory,
    /// of which they alone are counted.
    fn earliest_starts(&self, limit: f64, room: Room) -> Vec<usize> {
        // With a margin for rounding: sums are taken from the other end.
        let limit = limit * (1.0 + 1e-9);
        let costs = self.costs.as_slice();
        let mut earliest = vec![self.layers(); self.count + 1];
        for part in (0..self.count).rev() {
            let (speed, capacity) = (self.speed(self.rank(part)), self.capacity(part, room));
            let kept = self.memory.map_or(0, |memory| memory.in_flight[part] as u64);
            let (mut sum, mut held) = (0.0, 0u64);
            let taken = (0..earliest[part + 1]).rev().take_while(|&layer| {
                sum += costs[layer];
                let bytes = self.memory.map_or(0, |memory| memory.layers[layer].held(kept));
                held = held.saturating_add(bytes);
                sum / speed <= limit && held <= capacity
            });
            earliest[part] = earliest[part + 1] - taken.count();
        }
        earliest
    }

    /// The smallest time within which every part can be; there must be one.
    pub(super) fn bottleneck(&self, room: Room) -> f64 {
        // The table is narrow where the limit is close, and exact whatever it is.
        const STEP: f64 = 1.25;
        let longest = self.longest();
        let mut limit = longest / self.count as f64;
        while limit < longest {
            if let Some(found) = self.least_bottleneck(limit, room) {
                return found;
            }
            // Also where it is too small to grow.
            limit = (limit * STEP).max(f64::MIN_POSITIVE);
        }
        self.least_bottleneck(longest, room).unwrap_or(longest)
    }

    /// Of the partitions with no part above `limit`, the most even one; there must be one.
    pub(super) fn most_even(&self, limit: f64, room: Room) -> Partition {
        let layers = self.layers();
        // A power of two that keeps the squares in range.
        let exponent = if limit > 0.0 { limit.log2().floor().clamp(-1000.0, 1000.0) } else { 0.0 };
        let scale = (-exponent).exp2();
        // For each tail of the layers, the squares of the parts that are still to come.
        let mut below = vec![f64::INFINITY; layers + 1];
        below[layers] = 0.0;
        let mut choices = vec![vec![layers; layers + 1]; self.count];
        for part in (0..self.count).rev() {
            let capacity = self.capacity(part, room);
            let mut squares = vec![f64::INFINITY; layers + 1];
            for start in part..layers {
                for end in self.ends_alone(part, start, capacity).take_while(|e| e.floor <= limit) {
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
    pub(super) fn misfit(&self) -> PartitionError {
        let Some(memory) = self.memory.filter(|_| self.can_be_dealt(f64::MAX, Room::Unlimited))
        else {
            return PartitionError::NoPartition;
        };
        let fits = |extra: u64| self.can_be_dealt(f64::MAX, Room::Extra(extra));
        // Much too much takes long to look at.
        let enough = (0..u64::BITS).map(|bit| 1u64 << bit).find(|&extra| fits(extra));
        let extra = smallest(0, enough.unwrap_or(u64::MAX), fits);
        let partition = self.most_even(f64::MAX, Room::Extra(extra));
        let ends =
            partition.ranges().enumerate().filter_map(|(part, range)| self.end(part, &range));
        let needed = self.needed(ends);
        PartitionError::DoesNotFit { partition, needed, memory: memory.capacities.clone() }
    }
}
