//! The best possible bottleneck, and of the partitions that reach it the most even one.
//!
//! It looks only at layer costs: no memory limit, no cost of what crosses a cut.
//!
//! Two searches, one after the other. The *bottleneck* is the smallest number for which packing
//! layers from the left, a new part whenever the next layer would not fit, needs no more than the
//! parts there are. Costs that aren't negative are ordered like their bits, so halving the bits
//! finds it exactly, in at most 64 packings. The *most even* partition under that bottleneck comes
//! from a table: for each number of parts and each tail of the layers, the smallest sum of squares
//! and the earliest first cut that gives it. The square of a sum satisfies the quadrangle
//! inequality, also where parts above the bottleneck count as infinite, so that cut is not earlier
//! than that of the next longer tail in as many parts, and not later than that of the same tail in
//! one part fewer (D. E. Knuth 1971; F. F. Yao, "Efficient dynamic programming using quadrangle
//! inequalities", 1980). What lies between them adds up to `n` along each diagonal of the table.
//! (In two parts, where the second bound is empty, the first alone is used, by halving.)

use std::ops::{Range, RangeInclusive};

use crate::fixed;
use crate::{Costs, Partition, PartitionError, Partitioner};

/// The partition whose most expensive part is as cheap as contiguous parts allow.
///
/// No partition has a smaller [bottleneck](Partition::bottleneck). Among those that share the
/// smallest one, it takes the one with the smallest sum of squared part costs (so the parts that
/// aren't the bottleneck are even too), and among those the one whose first cut is earliest, then
/// whose second cut is, and so on.
///
/// # Exactness
///
/// The bottleneck is compared in `f64`, with part costs added as [`Costs`] says, and is optimal to
/// the last bit. The squares are compared in whole numbers that cut each cost off below 2^-61 of
/// the total: without any loss for whole-number costs that add up to less than 2^53.
///
/// # Cost
///
/// With `n` layers and `k` parts, time `O(n²)` and memory `O(n k)`, both only in the worst case,
/// where one layer is so expensive that all others can be cut anywhere. Cuts that leave too much
/// for the other parts are not looked at, and where costs are alike few remain.
///
/// ```
/// use stovepipe_partition::{Costs, Minimax, Partitioner};
///
/// let costs = Costs::new([5.0, 2.0, 5.0, 5.0, 7.0, 12.0, 3.0])?;
/// let partition = Minimax.partition(&costs, 4)?;
/// assert_eq!(partition.costs(&costs)?, [12.0, 12.0, 12.0, 3.0]);
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Minimax;

impl Partitioner for Minimax {
    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
        costs.check_parts(parts)?;
        let cap = bottleneck(costs, parts);
        most_even(costs, parts, cap)
    }

    fn name(&self) -> &str {
        "minimax"
    }
}

/// The smallest cap under which the layers fit into `parts` parts. It is what some part costs.
fn bottleneck(costs: &Costs, parts: usize) -> f64 {
    let most = costs.as_slice().iter().copied().fold(0.0, f64::max);
    let (mut low, mut high) = (most.to_bits(), costs.total().to_bits());
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(costs, parts, f64::from_bits(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    f64::from_bits(high)
}

/// Whether `parts` parts of at most `cap` hold all layers. Fewer are as good as `parts`: cutting a
/// part in two makes neither piece dearer.
fn fits(costs: &Costs, parts: usize, cap: f64) -> bool {
    let mut used = 1;
    let mut sum = 0.0;
    for &cost in costs.as_slice() {
        sum += cost;
        if sum > cap {
            used += 1;
            if used > parts {
                return false;
            }
            sum = cost;
        }
    }
    true
}

/// The partition with the smallest sum of squares, then the earliest cuts, under a `cap` that is at
/// least the bottleneck.
fn most_even(costs: &Costs, parts: usize, cap: f64) -> Result<Partition, PartitionError> {
    let totals = fixed::running_totals(costs);
    let reach = reach(costs, cap);
    let bands = bands(&reach, parts);

    let mut table = Table::new(&totals, &reach, &bands);
    for band in &bands[1..] {
        table.add_row(band);
    }
    Partition::from_sizes(table.sizes())
}

/// For each start, the furthest end of a part that costs at most `cap`; one entry more than there
/// are layers. It never decreases, since a shorter part is no dearer.
fn reach(costs: &Costs, cap: f64) -> Vec<usize> {
    let layers = costs.len();
    let mut reach = vec![layers; layers + 1];
    for start in 0..layers {
        let mut sum = 0.0;
        let over = costs.as_slice()[start..].iter().position(|cost| {
            sum += cost;
            sum > cap
        });
        match over {
            Some(size) => reach[start] = start + size,
            // From here on every tail fits, as the vector already says.
            None => break,
        }
    }
    reach
}

/// For each number of parts `t` from 0 on, the starts of a tail that `t` parts can hold and that
/// the other parts can reach. None is empty if `parts` parts can hold everything.
fn bands(reach: &[usize], parts: usize) -> Vec<RangeInclusive<usize>> {
    let layers = reach.len() - 1;
    let mut furthest = vec![0; parts + 1];
    for used in 1..=parts {
        furthest[used] = reach[furthest[used - 1]];
    }
    let mut needed = vec![0; layers + 1];
    for start in (0..layers).rev() {
        needed[start] = 1 + needed[reach[start]];
    }
    (0..=parts)
        .map(|tail| {
            let head = parts - tail;
            let held = needed.partition_point(|&needed| needed > tail);
            held.max(head)..=furthest[head].min(layers - tail)
        })
        .collect()
}

/// For each number of parts from 0 on, a row with the best first cut of each tail in its band.
struct Table<'a> {
    totals: &'a [u64],
    reach: &'a [usize],
    /// The cuts of all rows, one row after the other.
    cuts: Vec<usize>,
    /// For each row the first start, and where in `cuts` its entries begin.
    rows: Vec<(usize, usize)>,
    /// The smallest sums of squares of the last row; those before it are not needed again.
    squares: Vec<u128>,
    /// What `squares` will be, kept to use its memory again.
    next_squares: Vec<u128>,
}

impl<'a> Table<'a> {
    /// With the row for no parts, which hold only the empty tail.
    fn new(totals: &'a [u64], reach: &'a [usize], bands: &[RangeInclusive<usize>]) -> Self {
        let entries = bands.iter().map(|band| band.end() + 1 - band.start()).sum();
        let layers = reach.len() - 1;
        let mut cuts = Vec::with_capacity(entries);
        cuts.push(layers);
        Self {
            totals,
            reach,
            cuts,
            rows: vec![(layers, 0)],
            squares: vec![0],
            next_squares: Vec::new(),
        }
    }

    /// Adds the row for one part more, on the starts in `band`.
    fn add_row(&mut self, band: &RangeInclusive<usize>) {
        let below = self.rows[self.rows.len() - 1];
        let begin = self.cuts.len();
        let last_below = below.0 + (begin - below.1) - 1;
        let starts = *band.start()..band.end() + 1;
        self.rows.push((starts.start, begin));
        self.cuts.resize(begin + starts.len(), 0);
        self.next_squares.resize(starts.len(), 0);

        if self.rows.len() == 3 {
            // One part ends where the layers do, which limits the first of two parts to nothing.
            self.fill_by_halves(starts, below.0..=last_below);
        } else {
            let mut low = below.0;
            for start in starts {
                let mut high = last_below;
                if start >= below.0 {
                    // A row ends no later than the one below it, so there is an entry.
                    high = high.min(self.cuts[below.1 + start - below.0]);
                }
                low = self.fill_one(start, low..=high);
            }
        }
        std::mem::swap(&mut self.squares, &mut self.next_squares);
    }

    /// Fills the middle one of `starts`, whose cuts all lie in `within`, then those on either side
    /// of it, with what its cut says about theirs.
    fn fill_by_halves(&mut self, starts: Range<usize>, within: RangeInclusive<usize>) {
        if starts.is_empty() {
            return;
        }
        let middle = starts.start + starts.len() / 2;
        let cut = self.fill_one(middle, within.clone());
        self.fill_by_halves(starts.start..middle, *within.start()..=cut);
        self.fill_by_halves(middle + 1..starts.end, cut..=*within.end());
    }

    /// Fills the entry of the last row for `start` and returns its cut, which lies in `within`.
    fn fill_one(&mut self, start: usize, within: RangeInclusive<usize>) -> usize {
        let first_below = self.rows[self.rows.len() - 2].0;
        let (first, begin) = self.rows[self.rows.len() - 1];
        let low = *within.start().max(&(start + 1));
        let high = *within.end().min(&self.reach[start]);
        let below = &self.squares[low - first_below..=high - first_below];
        let (index, squares) = smallest(self.totals[start], &self.totals[low..=high], below);
        self.cuts[begin + start - first] = low + index;
        self.next_squares[start - first] = squares;
        low + index
    }

    /// The sizes of the parts, from the first layer on in as many parts as the last row has.
    fn sizes(&self) -> Vec<usize> {
        let mut start = 0;
        let mut sizes = Vec::with_capacity(self.rows.len() - 1);
        for (first, begin) in self.rows[1..].iter().rev() {
            let cut = self.cuts[begin + start - first];
            sizes.push(cut - start);
            start = cut;
        }
        sizes
    }
}

/// The index of the first end with the smallest sum of squares, and that sum: the part up to the
/// end, squared, and what is `below` for the rest.
fn smallest(offset: u64, ends: &[u64], below: &[u128]) -> (usize, u128) {
    let mut best = (0, u128::MAX);
    for (index, (end, rest)) in ends.iter().zip(below).enumerate() {
        let part = u128::from(end - offset);
        let squares = part * part + rest;
        // Strictly, so that of equal ones the earliest stays.
        if squares < best.1 {
            best = (index, squares);
        }
    }
    best
}
