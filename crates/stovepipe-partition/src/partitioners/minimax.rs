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
//! inequality, also where parts above the bottleneck count as infinite. So that cut is not earlier
//! than that of the next longer tail in as many parts, and not later than that of the same tail in
//! one part fewer. (D. E. Knuth 1971; F. F. Yao, "Efficient dynamic programming using quadrangle
//! inequalities", 1980.) What lies between them adds up to `n` along each diagonal of the table.
//! (In two parts, where the second bound is empty, the first alone is used, by halving.)

use std::ops::{Range, RangeInclusive};

use crate::costs::Costs;
use crate::error::PartitionError;
use crate::fixed;
use crate::halving::smallest_cost;
use crate::named::NamedPartitioner;
use crate::partition::Partition;
use crate::partitioner::Partitioner;

/// The partition whose most expensive part is as cheap as contiguous parts allow.
///
/// No partition has a smaller [bottleneck](Partition::bottleneck). Among those that share the
/// smallest one, it takes the one with the smallest sum of squared part costs, so that the parts
/// that aren't the bottleneck are even too. Among those it takes the one whose first cut is
/// earliest, then whose second cut is, and so on.
///
/// # Exactness
///
/// The bottleneck is compared in `f64`, with part costs added as [`Costs`] says, and is optimal to
/// the last bit. The squares are compared in whole numbers that cut each cost off below 2^-61 of
/// the total: without any loss for whole-number costs that add up to less than 2^53.
///
/// # Cost
///
/// With `n` layers and `k` parts, memory `O(n + k)`. Time grows with `n k` where one layer is so
/// expensive that the others can be cut anywhere, and at worst with `n²`. Cuts that leave too much
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

/// The entry in the list of partitioners.
pub(super) const NAMED: NamedPartitioner = NamedPartitioner {
    name: "minimax",
    form: "minimax",
    example: "minimax",
    summary: "Makes the most expensive part as cheap as can be, and the others even.",
    tuned: false,
    make: |_, _| Ok(Box::new(Minimax)),
};

impl Partitioner for Minimax {
    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
        costs.check_parts(parts)?;
        let longest = longest(costs, bottleneck(costs, parts));
        let mut sizes = Vec::with_capacity(parts);
        most_even(&fixed::running_totals(costs), &longest, parts, &mut sizes);
        Partition::from_sizes(sizes)
    }

    fn name(&self) -> &str {
        NAMED.name
    }
}

/// The smallest cap under which the layers fit into `parts` parts. It is what some part costs.
fn bottleneck(costs: &Costs, parts: usize) -> f64 {
    let most = costs.as_slice().iter().copied().fold(0.0, f64::max);
    smallest_cost(most, costs.total(), |cap| fits(costs, parts, cap))
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

/// For each layer, how many layers a part that begins with it can have at a cost of at most `cap`:
/// at least one. The ends of these parts never go back, since a shorter part is no dearer.
fn longest(costs: &Costs, cap: f64) -> Vec<usize> {
    let layers = costs.len();
    // From some start on every tail fits.
    let mut longest: Vec<_> = (0..layers).map(|start| layers - start).collect();
    for (start, longest) in longest.iter_mut().enumerate() {
        let mut sum = 0.0;
        let over = costs.as_slice()[start..].iter().position(|cost| {
            sum += cost;
            sum > cap
        });
        match over {
            Some(size) => *longest = size,
            None => break,
        }
    }
    longest
}

/// Appends the sizes of the partition with the smallest sum of squares, then the earliest cuts.
/// There must be one with parts that are no longer than `longest` says.
///
/// It asks the table only where the cut in the middle is, then does the same on both sides of that:
/// twice the time, but a table whose rows needn't be kept.
fn most_even(totals: &[u64], longest: &[usize], parts: usize, sizes: &mut Vec<usize>) {
    let layers = longest.len();
    if parts == 1 {
        sizes.push(layers);
        return;
    }
    let tail = parts / 2;
    let bands = bands(longest, parts);
    let mut table = Table::new(totals, longest);
    for (number, starts) in bands.into_iter().enumerate().skip(1) {
        table.next_row(number, starts);
        if number == tail {
            table.mark_starts();
        }
    }
    let middle = table.row.marks[0];
    most_even(&totals[..=middle], &longest[..middle], parts - tail, sizes);
    most_even(&totals[middle..], &longest[middle..], tail, sizes);
}

/// For each number of parts from 0 on, the starts of the tails that this many parts can hold and
/// that the other parts can reach. None is empty if `parts` parts can hold everything.
fn bands(longest: &[usize], parts: usize) -> Vec<Range<usize>> {
    let layers = longest.len();
    let end = |start: usize| longest.get(start).map_or(layers, |size| layers.min(start + size));
    let mut furthest = vec![0; parts + 1];
    for head in 1..=parts {
        furthest[head] = end(furthest[head - 1]);
    }
    let mut needed = vec![0; layers + 1];
    for start in (0..layers).rev() {
        needed[start] = 1 + needed[end(start)];
    }
    (0..=parts)
        .map(|tail| {
            let head = parts - tail;
            let held = needed.partition_point(|&needed| needed > tail);
            held.max(head)..furthest[head].min(layers - tail) + 1
        })
        .collect()
}

/// The best cut of each tail in one band, in one number of parts.
#[derive(Default)]
struct Row {
    first: usize,
    /// The earliest best first cut.
    cuts: Vec<usize>,
    /// The sum of squares it gives.
    squares: Vec<u128>,
    /// The places where the best partition passes the row whose starts were marked.
    marks: Vec<usize>,
}

/// The table while it is filled: the row that was filled last and the one below it.
struct Table<'a> {
    totals: &'a [u64],
    longest: &'a [usize],
    below: Row,
    row: Row,
}

impl<'a> Table<'a> {
    /// With the row for no parts, which hold only the empty tail.
    fn new(totals: &'a [u64], longest: &'a [usize]) -> Self {
        let layers = longest.len();
        Self {
            totals,
            longest,
            below: Row::default(),
            row: Row { first: layers, cuts: vec![layers], squares: vec![0], marks: vec![layers] },
        }
    }

    /// Goes on to the row of `number` parts, one more than the row before, for the given starts.
    fn next_row(&mut self, number: usize, starts: Range<usize>) {
        std::mem::swap(&mut self.below, &mut self.row);
        self.row.first = starts.start;
        self.row.cuts.resize(starts.len(), 0);
        self.row.squares.resize(starts.len(), 0);
        self.row.marks.resize(starts.len(), 0);

        let (first, rows) = (self.below.first, self.below.cuts.len());
        let last = first + rows - 1;
        if number == 2 {
            // One part ends where the layers do, which says nothing about the first of two.
            self.fill_by_halves(starts, first..=last);
            return;
        }
        let mut low = first;
        for start in starts {
            let mut high = last;
            if start >= first {
                // A row ends no later than the one below it, so there is an entry.
                high = high.min(self.below.cuts[start - first]);
            }
            low = self.fill_one(start, low..=high);
        }
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

    /// Fills the entry for `start`, whose cut lies in `within`, and returns the cut.
    fn fill_one(&mut self, start: usize, within: RangeInclusive<usize>) -> usize {
        let Self { below, row, .. } = self;
        let low = *within.start().max(&(start + 1));
        let high = *within.end().min(&(start + self.longest[start]));
        let (index, squares) = smallest(
            self.totals[start],
            &self.totals[low..=high],
            &below.squares[low - below.first..=high - below.first],
        );
        let cut = low + index;
        let entry = start - row.first;
        row.cuts[entry] = cut;
        row.squares[entry] = squares;
        row.marks[entry] = below.marks[cut - below.first];
        cut
    }

    /// Marks the starts of the last row: the rows above will say which of them they lead to.
    fn mark_starts(&mut self) {
        for (mark, start) in self.row.marks.iter_mut().zip(self.row.first..) {
            *mark = start;
        }
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
