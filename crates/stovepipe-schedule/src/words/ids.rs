//! Newtypes for ranks, stages and micro-batches. They count from zero and do no arithmetic.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The id with this index, counted from zero.
            ///
            /// # Panics
            ///
            /// If `index` doesn't fit 32 bits; a plan of that size is refused long before.
            #[must_use]
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("an id fits 32 bits"))
            }

            /// The index, counted from zero.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The first `count` ids in order.
            pub fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
                (0..count).map(Self::new)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A worker with a device. It holds one or more stages.
    Rank
}
id! {
    /// Consecutive layers that run together.
    Stage
}
id! {
    /// A slice of the mini-batch along the batch axis.
    MicroBatch
}
