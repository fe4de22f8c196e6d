//! Cutting a mini-batch into micro-batches.

use std::ops::Range;

/// Returns the samples of each micro-batch, as ranges of the batch axis.
///
/// Sizes differ by at most one, larger ones first. A mini-batch of fewer samples than
/// `micro_batches` makes as many micro-batches as it has samples.
///
/// ```
/// # use stovepipe_burn::micro_batch_ranges;
/// assert_eq!(micro_batch_ranges(8, 3), [0..3, 3..6, 6..8]);
/// assert_eq!(micro_batch_ranges(2, 4), [0..1, 1..2]);
/// assert!(micro_batch_ranges(0, 4).is_empty());
/// ```
#[must_use]
pub fn micro_batch_ranges(samples: usize, micro_batches: usize) -> Vec<Range<usize>> {
    let count = micro_batches.min(samples);
    let mut start = 0;
    (0..count)
        .map(|index| {
            let size = samples / count + usize::from(index < samples % count);
            start += size;
            start - size..start
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uneven_batches_make_sizes_that_differ_by_one() {
        // Sizes that other frameworks got wrong.
        let sizes = |samples, count| {
            micro_batch_ranges(samples, count).iter().map(Range::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(8, 3), [3, 3, 2]);
        assert_eq!(sizes(7, 4), [2, 2, 2, 1]);
        assert_eq!(sizes(2, 4), [1, 1]);
        assert_eq!(sizes(5, 4), [2, 1, 1, 1]);
    }

    proptest! {
        #[test]
        fn every_sample_is_in_exactly_one_micro_batch(samples in 0usize..200, asked in 1usize..50) {
            let ranges = micro_batch_ranges(samples, asked);
            prop_assert!(ranges.iter().cloned().flatten().eq(0..samples));
            prop_assert_eq!(ranges.len(), asked.min(samples));
            let sizes = || ranges.iter().map(Range::len);
            if let (Some(least), Some(most)) = (sizes().min(), sizes().max()) {
                prop_assert!(least >= 1 && most - least <= 1);
            }
        }
    }
}
