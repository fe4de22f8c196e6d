//! Costs as whole numbers, so that sums of squares compare exactly.
//!
//! Rounded sums of squares tie or don't tie by accident of order, and then neither "the smallest"
//! nor "the earliest among equals" means anything. Whole numbers have no such accidents, and on
//! them the inequality that makes the search fast holds to the last bit. Nothing here decides a
//! bottleneck: that is done on the costs themselves.

use crate::costs::Costs;

/// Bits a total keeps beyond the 53 of an `f64`. With 9 of them every sum stays below 2^63 and
/// every sum of squares below 2^126, so that `u64` and `u128` hold them.
const EXTRA_BITS: i32 = 9;

/// Running totals of the costs, in units of 2^-61 to 2^-62 of their sum, from 0 on: one entry more
/// than there are layers.
///
/// What a cost has below the unit is cut off. Nothing is, for whole-number costs that add up to
/// less than 2^53, nor for any cost above 1/256 of the total.
pub(crate) fn running_totals(costs: &Costs) -> Vec<u64> {
    let (_, total_exponent) = decompose(costs.total());
    let unit = total_exponent - EXTRA_BITS;
    let mut totals = Vec::with_capacity(costs.len() + 1);
    let mut total = 0;
    totals.push(total);
    for &cost in costs.as_slice() {
        total += in_units(cost, unit);
        totals.push(total);
    }
    totals
}

/// `cost / 2^unit`, rounded down; no cost is above the total, so the shift to the left is at most
/// [`EXTRA_BITS`].
fn in_units(cost: f64, unit: i32) -> u64 {
    let (mantissa, exponent) = decompose(cost);
    let shift = exponent - unit;
    if shift >= 0 {
        mantissa << shift
    } else {
        mantissa.checked_shr(shift.unsigned_abs()).unwrap_or(0)
    }
}

/// The mantissa (below 2^53) and exponent with `value = mantissa * 2^exponent`, for a finite value
/// that isn't negative.
fn decompose(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    // Eleven bits, so the cast loses nothing.
    match (bits >> 52) as i32 {
        0 => (fraction, -1074),
        biased => (fraction | (1 << 52), biased - 1075),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(costs: &[f64]) -> Vec<u64> {
        running_totals(&Costs::new(costs).expect("valid costs"))
    }

    #[test]
    fn decomposes_exactly() {
        for value in [0.0, 1.0, 0.1, 1e300, f64::MIN_POSITIVE, 5e-324, f64::MAX] {
            let (mantissa, exponent) = decompose(value);
            // In two factors, because 2^-1074 alone is as small as it gets.
            let half = exponent / 2;
            let back = mantissa as f64 * 2f64.powi(half) * 2f64.powi(exponent - half);
            assert_eq!(back, value);
        }
    }

    #[test]
    fn whole_numbers_keep_their_ratios() {
        let unit = totals(&[1.0, 2.0, 3.0])[1];
        assert_eq!(totals(&[1.0, 2.0, 3.0]), [0, unit, 3 * unit, 6 * unit]);
        let large = (1u64 << 52) as f64;
        let unit = totals(&[1.0, large])[1];
        assert!(unit > 0);
        assert_eq!(totals(&[1.0, large]), [0, unit, unit + (unit << 52)]);
    }

    #[test]
    fn extremes_stay_in_range() {
        assert_eq!(totals(&[0.0, 0.0]), [0, 0, 0]);
        assert_eq!(totals(&[5e-324, 5e-324]), [0, 512, 1024]);
        assert_eq!(totals(&[f64::MAX, 1.0])[2], ((1 << 53) - 1) << 9);
        // Rounded to even at every step, the sum in f64 stays behind the exact one.
        let mut behind = vec![1.0; 10_000];
        behind[0] = (1u64 << 53) as f64;
        assert!(totals(&behind)[10_000] < 1 << 63);
    }
}
