//! The layers of each part.
//!
//! A partition is contiguous and has no empty part by construction. It knows neither its parts'
//! costs nor where they run. How one is made from sizes and checked stands in `sizes`.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The layers `0..n` cut into contiguous parts, each with at least one layer.
///
/// It is written and read as the list of its sizes; as text it prints as `[4, 2]` and parses from
/// that or from `4,2`.
///
/// ```
/// use stovepipe_partition::Partition;
///
/// let partition: Partition = "4,2".parse()?;
/// assert_eq!(partition, Partition::from_sizes([4, 2])?);
/// assert_eq!(partition.layers(), 6);
/// assert_eq!(partition.range(0), 0..4);
/// assert_eq!(partition.part_of(4), 1);
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Partition {
    /// The end of each part: strictly increasing, the first at least 1.
    ends: Vec<usize>,
}

impl Partition {
    /// Cuts behind each of these layers counted from 1: strictly increasing, at least one.
    pub(crate) fn from_ends(ends: Vec<usize>) -> Self {
        debug_assert!(ends.is_sorted_by(|a, b| a < b) && ends.first().is_some_and(|end| *end > 0));
        Self { ends }
    }

    /// The number of parts, at least 1.
    pub fn parts(&self) -> usize {
        self.ends.len()
    }

    /// The number of layers of all parts together.
    pub fn layers(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The number of layers of each part.
    pub fn sizes(&self) -> Vec<usize> {
        self.ranges().map(|range| range.len()).collect()
    }

    /// For each part, the number of layers up to its end.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// The layers of one part.
    ///
    /// # Panics
    ///
    /// If there is no such part, as indexing a slice does.
    pub fn range(&self, part: usize) -> Range<usize> {
        let end = self.ends[part];
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        start..end
    }

    /// The layers of each part, in order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        (0..self.parts()).map(|part| self.range(part))
    }

    /// The part that holds a layer.
    ///
    /// # Panics
    ///
    /// If there is no such layer, as indexing a slice does.
    pub fn part_of(&self, layer: usize) -> usize {
        assert!(
            layer < self.layers(),
            "layer {layer} is outside the partition {self} of {} layers",
            self.layers()
        );
        self.ends.partition_point(|&end| end <= layer)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (part, range) in self.ranges().enumerate() {
            if part > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}", range.len())?;
        }
        f.write_str("]")
    }
}

impl From<Partition> for Vec<usize> {
    fn from(partition: Partition) -> Self {
        partition.sizes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(sizes: &[usize]) -> Partition {
        Partition::from_sizes(sizes).expect("valid sizes")
    }

    #[test]
    fn says_which_layers_a_part_holds() {
        let p = partition(&[1, 3, 2]);
        assert_eq!((p.parts(), p.layers()), (3, 6));
        assert_eq!(p.sizes(), [1, 3, 2]);
        assert_eq!(p.ranges().collect::<Vec<_>>(), [0..1, 1..4, 4..6]);
        let parts: Vec<_> = (0..6).map(|layer| p.part_of(layer)).collect();
        assert_eq!(parts, [0, 1, 1, 1, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "layer 6 is outside the partition [1, 3, 2] of 6 layers")]
    fn no_part_holds_a_layer_outside() {
        partition(&[1, 3, 2]).part_of(6);
    }
}
