//! Equal numbers of layers, whatever they cost.

use crate::costs::Costs;
use crate::error::PartitionError;
use crate::named::NamedPartitioner;
use crate::partition::Partition;
use crate::partitioner::Partitioner;

/// Parts whose sizes differ by at most one layer, the bigger ones first.
///
/// The right choice when nothing is known about the layers; it looks only at how many there are.
///
/// ```
/// use stovepipe_partition::{Costs, Partitioner, Uniform};
///
/// let partition = Uniform.partition(&Costs::uniform(7)?, 4)?;
/// assert_eq!(partition.sizes(), [2, 2, 2, 1]);
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uniform;

/// The entry in the list of partitioners.
pub(super) const NAMED: NamedPartitioner = NamedPartitioner {
    name: "uniform",
    form: "uniform",
    example: "uniform",
    summary: "Gives every part the same number of layers, or one more.",
    tuned: false,
    make: |_, _| Ok(Box::new(Uniform)),
};

impl Partitioner for Uniform {
    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
        costs.check_parts(parts)?;
        let (size, bigger) = (costs.len() / parts, costs.len() % parts);
        let sizes: Vec<_> = (0..parts).map(|part| size + usize::from(part < bigger)).collect();
        Partition::from_sizes(sizes)
    }

    fn name(&self) -> &str {
        NAMED.name
    }
}
