//! Makes partitions from sizes and from text, and checks them against layers and costs.

use std::str::FromStr;

use crate::costs::Costs;
use crate::error::PartitionError;
use crate::partition::Partition;

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
        Ok(Self::from_ends(ends))
    }

    /// The cost of each part: the sum of its layers, added in layer order.
    ///
    /// # Errors
    ///
    /// [`PartitionError::LayersMismatch`] if the costs are for another number of layers.
    pub fn costs(&self, costs: &Costs) -> Result<Vec<f64>, PartitionError> {
        self.check_layers(costs.len())?;
        Ok(self.ranges().map(|range| costs.sum(range)).collect())
    }

    /// The cost of the most expensive part.
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::value::{Error, SeqDeserializer};

    use super::*;

    fn partition(sizes: &[usize]) -> Partition {
        Partition::from_sizes(sizes).expect("valid sizes")
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
