//! The cut that a person wrote down.
//!
//! It never adapts a cut to another model: sizes that don't fit are an error, not a hint.

use crate::costs::Costs;
use crate::error::PartitionError;
use crate::named::{NamedPartitioner, PartitionerFacts};
use crate::partition::Partition;
use crate::partitioner::Partitioner;

/// Always the same, given partition; costs are ignored.
///
/// ```
/// use stovepipe_partition::{Costs, Explicit, Partitioner};
///
/// let explicit = Explicit::from_sizes([5, 1])?;
/// assert_eq!(explicit.partition(&Costs::uniform(6)?, 2)?.sizes(), [5, 1]);
/// assert!(explicit.partition(&Costs::uniform(7)?, 2).is_err());
/// assert!(explicit.partition(&Costs::uniform(6)?, 3).is_err());
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Explicit(Partition);

/// The entry in the list of partitioners.
pub(super) const NAMED: NamedPartitioner = NamedPartitioner {
    name: "explicit",
    form: "explicit=N,…",
    example: "explicit=4,2",
    summary: "Cuts by hand: the number of layers of each part.",
    tuned: false,
    make,
};

fn make(argument: &str, _: &PartitionerFacts) -> Result<Box<dyn Partitioner>, PartitionError> {
    let partition: Partition = argument.parse().map_err(|_| NAMED.refuse(argument))?;
    Ok(Box::new(Explicit(partition)))
}

impl Explicit {
    /// Always `partition`.
    pub fn new(partition: Partition) -> Self {
        Self(partition)
    }

    /// Always the partition with these sizes.
    ///
    /// # Errors
    ///
    /// As [`Partition::from_sizes`].
    pub fn from_sizes(sizes: impl Into<Vec<usize>>) -> Result<Self, PartitionError> {
        Partition::from_sizes(sizes).map(Self)
    }
}

impl From<Partition> for Explicit {
    fn from(partition: Partition) -> Self {
        Self(partition)
    }
}

impl Partitioner for Explicit {
    /// # Errors
    ///
    /// [`PartitionError::LayersMismatch`] or [`PartitionError::PartsMismatch`] if the given
    /// partition isn't for this number of layers and parts.
    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
        self.0.check(costs.len(), parts)?;
        Ok(self.0.clone())
    }

    fn name(&self) -> &str {
        NAMED.name
    }
}
