//! Chooses the search, and says how good its answer is.

use super::dealt::Room;
use super::fitting::{Effort, Fitting};
use super::parts::Parts;
use super::shared::Shared;
use crate::error::PartitionError;
use crate::partition::Partition;

/// A partition, and how good it is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Solution {
    /// The partition.
    pub partition: Partition,
    /// The time that the busiest rank is busy.
    pub bottleneck: f64,
    /// No partition has a smaller bottleneck than this; equal to `bottleneck` if the partition is
    /// proven to be the best.
    pub bound: f64,
}

/// How many candidates are looked at, and how many before a cut that fits is looked for by chance:
/// of few layers they are all.
const BUDGET: usize = 1_000_000;
const FIRST_LOOK: usize = 50_000;

/// The best partition, or the best that was found.
pub(super) fn solve(parts: &Parts<'_>) -> Result<Solution, PartitionError> {
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
    let fitting = Fitting::new(parts);
    let cannot_fit = fitting.as_ref().is_some_and(Fitting::cannot_fit);
    let mut shared = Shared::new(parts, fitting.as_ref());
    if alone {
        shared.improve(dealt().0.ranges().collect());
    }
    let mut proven = !cannot_fit && shared.search(if alone { BUDGET } else { FIRST_LOOK });
    if let Some(fitting) = fitting.as_ref().filter(|_| !alone && !proven && !cannot_fit) {
        let (ranges, _, fits) = fitting.search(Effort::Find);
        if fits {
            shared.improve(ranges);
        }
        proven = shared.search(BUDGET);
    }
    let Some((bottleneck, _, ends)) = shared.best else {
        let effort = if cannot_fit || proven { Effort::Show } else { Effort::Find };
        let closest = fitting.as_ref().map(|fitting| fitting.search(effort));
        let (ranges, needed, _) = closest.unwrap_or_default();
        let partition = Partition::from_ends(ranges.iter().map(|range| range.end).collect());
        let memory = parts.memory.map(|memory| memory.capacities.clone()).unwrap_or_default();
        return Err(match cannot_fit || proven {
            true => PartitionError::DoesNotFit { partition, needed, memory },
            false => PartitionError::NotFound { partition, needed, memory },
        });
    };
    // No rank is less busy than its longest part, nor all of them less than the work there is.
    let speed: f64 = (0..parts.ranks).map(|rank| parts.speed(rank)).sum();
    let bound = if proven {
        bottleneck
    } else {
        parts.bottleneck(Room::Unlimited).max(parts.costs.total() / speed).min(bottleneck)
    };
    Ok(Solution { partition: Partition::from_ends(ends), bottleneck, bound })
}
