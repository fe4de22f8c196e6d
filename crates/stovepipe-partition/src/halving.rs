//! The one binary search of this crate, over numbers and over costs, whose bits are ordered as they
//! are.

/// The smallest number from `low` to `high` for which something holds that holds for all above it
/// too, `high` included.
pub(crate) fn smallest(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

/// The same over costs: finite numbers that aren't negative.
pub(crate) fn smallest_cost(low: f64, high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    f64::from_bits(smallest(low.to_bits(), high.to_bits(), |bits| holds(f64::from_bits(bits))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_boundary_to_the_last_bit() {
        for boundary in [0, 1, 7, u64::MAX] {
            assert_eq!(smallest(0, u64::MAX, |number| number >= boundary), boundary);
        }
        assert_eq!(smallest_cost(0.0, f64::MAX, |cost| cost >= 0.1), 0.1);
        assert_eq!(smallest_cost(2.0, 2.0, |_| false), 2.0);
    }
}
