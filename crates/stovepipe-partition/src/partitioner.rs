//! The trait behind which every way of cutting stands.
//!
//! It is kept apart from its implementations because it must stay stable. It takes costs and a
//! number of parts and nothing else: whatever more a partitioner needs is its own field.

use std::sync::Arc;

use crate::costs::Costs;
use crate::error::PartitionError;
use crate::partition::Partition;

/// A way of cutting layers into contiguous parts.
///
/// # Contract
///
/// An implementation
///
/// - returns a partition of exactly `costs.len()` layers into exactly `parts` parts, or an error:
///   never another number of parts because they were easier to fill
///   ([`Partition::check`] is how a caller makes sure);
/// - returns an error, and doesn't panic, if there are fewer layers than parts or no parts
///   ([`Costs::check_parts`] does it);
/// - is deterministic: the same costs and parts give the same partition, in every process. Ranks
///   that run in different processes each cut the model themselves and must agree;
/// - treats the layers' costs as additive, and makes no assumption about their unit.
///
/// # Example
///
/// One that fills each part up to the average, as a downstream crate would write it:
///
/// ```
/// use stovepipe_partition::{Costs, Partition, PartitionError, Partitioner};
///
/// struct FillToAverage;
///
/// impl Partitioner for FillToAverage {
///     fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
///         costs.check_parts(parts)?;
///         let average = costs.total() / parts as f64;
///         let mut sizes = Vec::with_capacity(parts);
///         let mut start = 0;
///         for left in (1..parts).rev() {
///             // Leave at least one layer for each part that is still to come.
///             let limit = costs.len() - left;
///             let mut end = start + 1;
///             while end < limit && costs.sum(start..end + 1) <= average {
///                 end += 1;
///             }
///             sizes.push(end - start);
///             start = end;
///         }
///         sizes.push(costs.len() - start);
///         Partition::from_sizes(sizes)
///     }
///
///     fn name(&self) -> &str {
///         "fill-to-average"
///     }
/// }
///
/// let costs = Costs::new([1.0, 1.0, 2.0, 4.0])?;
/// assert_eq!(FillToAverage.partition(&costs, 2)?.to_string(), "[3, 1]");
/// assert!(FillToAverage.partition(&costs, 5).is_err());
/// # Ok::<(), PartitionError>(())
/// ```
pub trait Partitioner: Send + Sync {
    /// Cuts the layers that `costs` describes into `parts` parts.
    ///
    /// # Errors
    ///
    /// [`PartitionError::NoParts`] and [`PartitionError::TooManyParts`] where the request can't be
    /// met by anyone; [`PartitionError::Other`] for a reason of the implementation's own.
    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError>;

    /// The name used in command lines, reports and errors. The default is its type's path.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }
}

macro_rules! forward {
    ($($pointer:ty),+) => {$(
        impl<P: Partitioner + ?Sized> Partitioner for $pointer {
            fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
                (**self).partition(costs, parts)
            }

            fn name(&self) -> &str {
                (**self).name()
            }
        }
    )+};
}

forward!(&P, Box<P>, Arc<P>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Explicit, Minimax, Uniform};

    /// Only the required method, to test the default.
    struct Bare;

    impl Partitioner for Bare {
        fn partition(&self, costs: &Costs, _parts: usize) -> Result<Partition, PartitionError> {
            Partition::from_sizes([costs.len()])
        }
    }

    #[test]
    fn is_dyn_compatible() {
        let explicit = Explicit::from_sizes([1, 2]).expect("valid");
        let all: [Box<dyn Partitioner>; 3] =
            [Box::new(Uniform), Box::new(Minimax), Box::new(explicit)];
        let costs = Costs::new([1.0, 1.0, 1.0]).expect("valid");
        let names: Vec<_> = all.iter().map(|p| p.name()).collect();
        assert_eq!(names, ["uniform", "minimax", "explicit"]);
        for partitioner in &all {
            let partition = partitioner.partition(&costs, 2).expect("3 layers in 2");
            assert_eq!(partition.check(3, 2), Ok(()));
        }
    }

    #[test]
    fn pointers_forward() {
        fn name_of(partitioner: impl Partitioner) -> String {
            partitioner.name().to_owned()
        }
        let uniform: &dyn Partitioner = &Uniform;
        assert_eq!(name_of(uniform), "uniform");
        assert_eq!(name_of(Box::new(Minimax) as Box<dyn Partitioner>), "minimax");
        assert_eq!(name_of(Arc::new(Minimax) as Arc<dyn Partitioner>), "minimax");
        let costs = Costs::uniform(3).expect("valid");
        assert_eq!((&&Bare).partition(&costs, 1), Bare.partition(&costs, 1));
    }

    #[test]
    fn the_default_name_is_the_type() {
        assert!(Bare.name().ends_with("Bare"), "{}", Bare.name());
    }
}
