//! One cost per layer, checked once.
//!
//! Also the one rule by which the cost of several layers is added up. The unit is the caller's, and
//! nothing here measures a cost.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::PartitionError;

/// The cost of each layer, in model order: at least one entry, each finite and not negative, with a
/// finite sum.
///
/// # How costs are added
///
/// The cost of consecutive layers is their `f64` sum *taken in layer order*, starting at the first
/// of them, everywhere in this crate. So the cost of one layer is exactly that layer's cost, and
/// equal runs of layers cost the same wherever they stand. Adding a layer at either end never makes
/// a run cheaper: rounded addition keeps order. (Differences of running totals would break the
/// first two.)
///
/// It is written and read as a plain list; reading checks it as [`Costs::new`] does.
///
/// ```
/// use stovepipe_partition::Costs;
///
/// let costs = Costs::new([3.0, 1.5, 0.0])?;
/// assert_eq!(costs.total(), 4.5);
/// assert!(Costs::new([1.0, f64::NAN]).is_err());
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<f64>", into = "Vec<f64>")]
pub struct Costs(Vec<f64>);

impl Costs {
    /// Takes one cost per layer, in model order.
    ///
    /// # Errors
    ///
    /// [`PartitionError::NoCosts`] for an empty list, [`PartitionError::InvalidCost`] for an entry
    /// that is negative, infinite or not a number, [`PartitionError::InfiniteTotal`] if the sum
    /// overflows.
    pub fn new(costs: impl Into<Vec<f64>>) -> Result<Self, PartitionError> {
        let mut costs: Vec<f64> = costs.into();
        if costs.is_empty() {
            return Err(PartitionError::NoCosts);
        }
        for (layer, cost) in costs.iter_mut().enumerate() {
            if !cost.is_finite() || *cost < 0.0 {
                return Err(PartitionError::InvalidCost { layer, cost: *cost });
            }
            // A negative zero passes the test above, but its bits would order it wrongly.
            *cost += 0.0;
        }
        let costs = Self(costs);
        if costs.total().is_finite() { Ok(costs) } else { Err(PartitionError::InfiniteTotal) }
    }

    /// Cost 1 for each of `layers` layers.
    ///
    /// # Errors
    ///
    /// [`PartitionError::NoCosts`] if `layers` is 0.
    pub fn uniform(layers: usize) -> Result<Self, PartitionError> {
        Self::new(vec![1.0; layers])
    }

    /// The costs in model order.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }

    /// The number of layers, at least 1.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Always `false`: costs have at least one entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cost of all layers together.
    pub fn total(&self) -> f64 {
        self.sum(0..self.len())
    }

    /// The cost of the layers in `layers`, added in layer order; 0 for an empty range.
    ///
    /// # Panics
    ///
    /// If the range reaches past the last layer.
    pub fn sum(&self, layers: Range<usize>) -> f64 {
        self.0[layers].iter().fold(0.0, |sum, cost| sum + cost)
    }

    /// Checks that these layers can be cut into `parts` parts without an empty one: the check a
    /// [`Partitioner`](crate::Partitioner) begins with.
    ///
    /// # Errors
    ///
    /// [`PartitionError::NoParts`] if `parts` is 0, [`PartitionError::TooManyParts`] if there are
    /// fewer layers than parts.
    pub fn check_parts(&self, parts: usize) -> Result<(), PartitionError> {
        let layers = self.len();
        if parts == 0 {
            Err(PartitionError::NoParts)
        } else if parts > layers {
            Err(PartitionError::TooManyParts { parts, layers })
        } else {
            Ok(())
        }
    }
}

impl TryFrom<Vec<f64>> for Costs {
    type Error = PartitionError;

    fn try_from(costs: Vec<f64>) -> Result<Self, PartitionError> {
        Self::new(costs)
    }
}

impl From<Costs> for Vec<f64> {
    fn from(costs: Costs) -> Self {
        costs.0
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, SeqDeserializer};

    use super::*;

    #[test]
    fn refuses_what_is_not_a_cost() {
        assert_eq!(Costs::new([]), Err(PartitionError::NoCosts));
        assert_eq!(Costs::uniform(0), Err(PartitionError::NoCosts));
        for cost in [-1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let error = Costs::new([1.0, cost]).expect_err("not a cost");
            assert!(matches!(error, PartitionError::InvalidCost { layer: 1, .. }), "{error}");
        }
        assert_eq!(Costs::new([f64::MAX, f64::MAX]), Err(PartitionError::InfiniteTotal));
    }

    #[test]
    fn negative_zero_becomes_zero() {
        let costs = Costs::new([-0.0]).expect("zero is a cost");
        assert!(costs.as_slice()[0].is_sign_positive());
    }

    #[test]
    fn adds_in_layer_order() {
        let costs = Costs::new([0.1, 0.2, 0.3]).expect("valid");
        assert_eq!(costs.total(), (0.1 + 0.2) + 0.3);
        assert_eq!(costs.sum(1..3), 0.2 + 0.3);
        assert_eq!(costs.sum(2..2), 0.0);
        // A running total would have swallowed the small layer.
        let costs = Costs::new([1e16, 1.0]).expect("valid");
        assert_eq!(costs.sum(1..2), 1.0);
    }

    #[test]
    fn reading_checks() {
        let read = |values: Vec<f64>| {
            Costs::deserialize(SeqDeserializer::<_, Error>::new(values.into_iter()))
        };
        assert_eq!(read(vec![1.0, 0.0]).expect("valid"), Costs::new([1.0, 0.0]).expect("valid"));
        let error = read(vec![1.0, -2.0]).expect_err("negative");
        assert_eq!(
            error.to_string(),
            "layer 1 has cost -2: every cost must be finite and at least 0"
        );
    }
}
