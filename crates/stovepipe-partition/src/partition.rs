//! Which layers each part holds.
//!
//! A partition is contiguous and has no empty part by construction. It does not know what its
//! parts cost (that is asked with [`Costs`]) nor where they run.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Costs, PartitionError};

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
    /// Cuts by explicit sizes: the number of layers of each part, in order.
    ///
    /// # Errors
    ///
    /// [`PartitionError::NoParts`] for an empty list, [`PartitionError::EmptyPart`] for a size of
    /// 0, [`PartitionError::SizeOverflow`] if the sum overflows.
    pub fn from_sizes(sizes: impl Into<Vec<usize>>) -> Result<Self, PartitionError> {
        let mut ends: Vec<usize> = sizes.into();
        if ends.is_empty() {
            return Err(PartitionError::NoParts);
        }
        let mut end = 0usize;
        for (part, size) in ends.iter_mut().enumerate() {
            if *size == 0 {
                return Err(PartitionError::EmptyPart { part });
            }
            end = end.checked_add(*size).ok_or(PartitionError::SizeOverflow)?;
            *size = end;
        }
        Ok(Self { ends })
    }

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

    /// What each part costs: the sum of its layers, added in layer order.
    ///
    /// # Errors
    ///
    /// [`PartitionError::LayersMismatch`] if the costs are for another number of layers.
    pub fn costs(&self, costs: &Costs) -> Result<Vec<f64>, PartitionError> {
        self.check_layers(costs.len())?;
        Ok(self.ranges().map(|range| costs.sum(range)).collect())
    }

    /// What the most expensive part costs.
    ///
    /// # Errors
    ///
    /// [`PartitionError::LayersMismatch`] if the costs are for another number of layers.
    pub fn bottleneck(&self, costs: &Costs) -> Result<f64, PartitionError> {
        Ok(self.costs(costs)?.into_iter().fold(0.0, f64::max))
    }

    /// Checks that this partition is for a model of `layers` layers in `parts` parts: what a caller
    /// does with the answer of a [`Partitioner`](crate::Partitioner) that it didn't write.
    ///
    /// # Errors
    ///
    /// [`PartitionError::LayersMismatch`] or [`PartitionError::PartsMismatch`].
    pub fn check(&self, layers: usize, parts: usize) -> Result<(), PartitionError> {
        self.check_layers(layers)?;
        if self.parts() == parts {
            Ok(())
        } else {
            Err(PartitionError::PartsMismatch { partition: self.clone(), parts })
        }
    }

    fn check_layers(&self, layers: usize) -> Result<(), PartitionError> {
        if self.layers() == layers {
            Ok(())
        } else {
            Err(PartitionError::LayersMismatch { partition: self.clone(), layers })
        }
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

impl FromStr for Partition {
    type Err = PartitionError;

    /// Reads sizes separated by commas, with or without brackets around them.
    fn from_str(text: &str) -> Result<Self, PartitionError> {
        let trimmed = text.trim();
        let list =
            trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(trimmed);
        let sizes = list
            .split(',')
            .map(|token| {
                let token = token.trim();
                token.parse().map_err(|_| PartitionError::Parse {
                    text: text.to_owned(),
                    token: token.to_owned(),
                })
            })
            .collect::<Result<Vec<usize>, _>>()?;
        Self::from_sizes(sizes)
    }
}

impl TryFrom<Vec<usize>> for Partition {
    type Error = PartitionError;

    fn try_from(sizes: Vec<usize>) -> Result<Self, PartitionError> {
        Self::from_sizes(sizes)
    }
}

impl From<Partition> for Vec<usize> {
    fn from(partition: Partition) -> Self {
        partition.sizes()
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, SeqDeserializer};

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

    #[test]
    fn refuses_empty_parts() {
        assert_eq!(Partition::from_sizes([]), Err(PartitionError::NoParts));
        assert_eq!(Partition::from_sizes([3, 0, 1]), Err(PartitionError::EmptyPart { part: 1 }));
        assert_eq!(Partition::from_sizes([usize::MAX, 1]), Err(PartitionError::SizeOverflow));
    }

    #[test]
    fn costs_must_be_for_the_same_layers() {
        let p = partition(&[2, 1]);
        let costs = Costs::new([1.0, 2.0, 4.0]).expect("valid");
        assert_eq!(p.costs(&costs), Ok(vec![3.0, 4.0]));
        assert_eq!(p.bottleneck(&costs), Ok(4.0));

        let error = p.costs(&Costs::uniform(4).expect("valid"));
        assert_eq!(
            error.expect_err("3 is not 4").to_string(),
            "the partition [2, 1] covers 3 layers, but there are 4: make its sizes add up to 4"
        );
        assert_eq!(
            p.check(3, 3).expect_err("2 is not 3").to_string(),
            "the partition [2, 1] has 2 parts, but 3 were asked for: \
             give 3 sizes or ask for 2 parts"
        );
    }

    #[test]
    fn text_goes_both_ways() {
        let p = partition(&[4, 2]);
        for text in ["4,2", " 4 , 2 ", "[4, 2]", &p.to_string()] {
            assert_eq!(text.parse(), Ok(p.clone()), "{text}");
        }
        for (text, token) in [("4,x", "x"), ("4,,2", ""), ("", ""), ("-1", "-1"), ("[4, 2", "[4")] {
            assert_eq!(
                text.parse::<Partition>(),
                Err(PartitionError::Parse { text: text.to_owned(), token: token.to_owned() })
            );
        }
        assert_eq!(
            "4,x".parse::<Partition>().expect_err("x").to_string(),
            "'4,x' is not a partition, because of 'x': \
             write the number of layers of each part, as in 4,2"
        );
        assert_eq!("4,0".parse::<Partition>(), Err(PartitionError::EmptyPart { part: 1 }));
    }

    #[test]
    fn reading_checks() {
        let read = |sizes: Vec<usize>| {
            Partition::deserialize(SeqDeserializer::<_, Error>::new(sizes.into_iter()))
        };
        assert_eq!(read(vec![4, 2]).expect("valid"), partition(&[4, 2]));
        assert!(read(vec![4, 0]).is_err());
    }
}
