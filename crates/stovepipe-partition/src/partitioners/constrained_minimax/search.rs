//! Chooses the search, and says how good its answer is.

use super::dealt::Room;
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
