//! Cuts a sequence of layers into contiguous stages.
//!
//! [`Costs`] holds one number per layer, a [`Partitioner`] turns costs and a number of parts into a
//! [`Partition`], and a partition says which layers each part holds. [`partitioners()`] lists those
//! that come with the crate; start with [`Minimax`]. Others implement the trait in their own crate.
//!
//! ```
//! use stovepipe_partition::{Costs, Minimax, Partitioner};
//!
//! let costs = Costs::new([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let partition = Minimax.partition(&costs, 2)?;
//!
//! assert_eq!(partition.to_string(), "[4, 2]");
//! assert_eq!(partition.range(1), 4..6);
//! assert_eq!(partition.costs(&costs)?, [10.0, 11.0]);
//! assert_eq!(partition.bottleneck(&costs)?, 11.0);
//! # Ok::<(), stovepipe_partition::PartitionError>(())
//! ```
//!
//! What a cost means (milliseconds, bytes, operations) is the caller's choice. This crate knows no
//! schedule, no tensor and no device: it neither measures costs nor places parts on ranks.

mod costs;
mod error;
mod fixed;
mod halving;
mod memory;
mod named;
mod partition;
mod partitioner;
mod partitioners;
mod sizes;

pub use costs::Costs;
pub use error::PartitionError;
pub use memory::{LayerBytes, Memory};
pub use named::{NamedPartitioner, PartitionerFacts};
pub use partition::Partition;
pub use partitioner::Partitioner;
// Whatever the registry lists: a new partitioner needs no line here.
pub use partitioners::*;
