//! The time and the bytes that a given partition asks of each part and each rank.

use super::ConstrainedMinimax;
use super::parts::End;
use crate::costs::Costs;
use crate::error::PartitionError;
use crate::partition::Partition;

/// The time and the bytes that a partition asks of ranks.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Loads {
    /// The rank of each part.
    pub placement: Vec<usize>,
    /// The time of each part on its rank, cuts included.
    pub part_times: Vec<f64>,
    /// The time that each rank is busy.
    pub rank_times: Vec<f64>,
    /// The bytes that each part needs; zeros without memory.
    pub part_bytes: Vec<u64>,
    /// The bytes that each rank needs; zeros without memory.
    pub rank_bytes: Vec<u64>,
}

impl ConstrainedMinimax {
    /// The time and the bytes that a partition asks of ranks, whoever made it. Whether there is
    /// enough memory isn't looked at, and neither are pins and groups.
    ///
    /// ```
    /// use stovepipe_partition::{ConstrainedMinimax, Costs, Partition};
    ///
    /// let costs = Costs::new([1.0, 2.0, 3.0, 4.0])?;
    /// let ranks = ConstrainedMinimax::new().speeds([1.0, 2.0]).placement([0, 1, 0]);
    /// let loads = ranks.loads(&costs, &Partition::from_sizes([1, 2, 1])?)?;
    /// assert_eq!(loads.part_times, [1.0, 2.5, 4.0]);
    /// assert_eq!(loads.rank_times, [5.0, 2.5]);
    /// # Ok::<(), stovepipe_partition::PartitionError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PartitionError::LayersMismatch`] if the costs are for another number of layers, and
    /// [`PartitionError::Constraint`] as [`solve`](Self::solve).
    pub fn loads(&self, costs: &Costs, partition: &Partition) -> Result<Loads, PartitionError> {
        partition.check(costs.len(), partition.parts())?;
        let free = Self { pins: Vec::new(), groups: Vec::new(), ..self.clone() };
        let parts = free.parts(costs, partition.parts())?;
        let ranges = partition.ranges().enumerate();
        let ends: Vec<End> = ranges.filter_map(|(part, range)| parts.end(part, &range)).collect();
        let mut rank_times = vec![0.0; parts.ranks];
        for (end, &rank) in ends.iter().zip(&parts.placement) {
            rank_times[rank] += end.time;
        }
        Ok(Loads {
            part_times: ends.iter().map(|end| end.time).collect(),
            part_bytes: ends.iter().map(|end| end.holds.saturating_add(end.works)).collect(),
            rank_bytes: parts.needed(ends.iter().copied()),
            rank_times,
            placement: parts.placement,
        })
    }
}
