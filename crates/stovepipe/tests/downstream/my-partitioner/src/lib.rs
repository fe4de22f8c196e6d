//! A partitioner that knows nothing of stovepipe except `stovepipe-partition`.

use stovepipe_partition::{Costs, Partition, PartitionError, Partitioner};

/// One layer in every part except the last, which takes the rest.
pub struct Lopsided;

impl Partitioner for Lopsided {
    fn name(&self) -> &str {
        "lopsided"
    }

    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
        costs.check_parts(parts)?;
        let mut sizes = vec![1; parts];
        sizes[parts - 1] = costs.len() + 1 - parts;
        Partition::from_sizes(sizes)
    }
}
