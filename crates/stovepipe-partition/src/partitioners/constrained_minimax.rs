//! The best possible bottleneck where ranks differ, memory is limited and some cuts are closed.
//!
//! With one part on each rank it is found exactly, in two passes over (part, first layer). The
//! first finds the smallest time under which the layers can be dealt out, with a limit that grows
//! until they can; the second the most even partition within that time.
//! With several parts on a rank their times add up, and no such table exists: a search with a
//! budget then takes over, which says how far from the best it may be.

mod dealt;
mod fitting;
mod loads;
mod parts;
mod search;
mod shared;

use std::ops::Range;

pub use self::loads::Loads;
use self::parts::Parts;
pub use self::search::Solution;
use crate::costs::Costs;
use crate::error::PartitionError;
use crate::memory::Memory;
use crate::named::{NamedPartitioner, PartitionerFacts};
use crate::partition::Partition;
use crate::partitioner::Partitioner;

/// The partition whose busiest rank is least busy, under constraints.
///
/// The time of a part is the sum of its layers' costs, divided by the speed of its rank, plus the
/// costs of the cuts on either side of it. Each part has a rank of its own unless
/// [`placement`](Self::placement) says otherwise; a rank is busy for the time of all its parts.
///
/// # Exactness
///
/// With one part on each rank the answer is the best there is, as for [`Minimax`](crate::Minimax).
/// Among the partitions with the smallest bottleneck, it is the one with the smallest sum of
/// squared part times, and then with the earliest first cut. The parts behind that cut follow the
/// same rule. Squares are added in `f64`.
///
/// With several parts on a rank, a search looks at a million candidates at most: where that is all
/// of them, the answer is the best there is by bottleneck, squared loads and earliest cuts. What
/// [`solve`](Self::solve) returns says whether it is, and otherwise below what no partition can be.
/// Where memory is tight, cuts that fit are looked for first; an error says whether there is none
/// or whether none was found.
///
/// ```
/// use stovepipe_partition::{ConstrainedMinimax, Costs, Partitioner};
///
/// let costs = Costs::uniform(9)?;
/// // The second rank is twice as fast, and layers 2 and 3 stay together.
/// let partitioner = ConstrainedMinimax::new().speeds([1.0, 2.0]).together(2..4);
/// assert_eq!(partitioner.partition(&costs, 2)?.sizes(), [2, 7]);
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConstrainedMinimax {
    speeds: Option<Vec<f64>>,
    cut_costs: Option<Vec<f64>>,
    memory: Option<Memory>,
    placement: Option<Vec<usize>>,
    pins: Vec<(usize, usize)>,
    groups: Vec<Range<usize>>,
}

/// The entry in the list of partitioners.
pub(super) const NAMED: NamedPartitioner = NamedPartitioner {
    name: "constrained-minimax",
    form: "constrained-minimax",
    example: "constrained-minimax",
    summary: "Does what minimax does for ranks of known speeds, memory, placement, and costs of cuts.",
    tuned: true,
    make,
};

fn make(_: &str, facts: &PartitionerFacts) -> Result<Box<dyn Partitioner>, PartitionError> {
    Ok(Box::new(ConstrainedMinimax::with_facts(facts)))
}

impl ConstrainedMinimax {
    /// Without constraints: as [`Minimax`](crate::Minimax).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With all that these facts say.
    #[must_use]
    pub fn with_facts(facts: &PartitionerFacts) -> Self {
        let PartitionerFacts { speeds, cut_costs, memory, placement, pins, groups } = facts.clone();
        Self { speeds, cut_costs, memory, placement, pins, groups }
    }

    /// The relative speed of each rank, in their order: a rank of speed 2 needs half the time.
    #[must_use]
    pub fn speeds(mut self, speeds: impl Into<Vec<f64>>) -> Self {
        self.speeds = Some(speeds.into());
        self
    }

    /// The costs of cutting before each layer except the first: the time that both neighbours of
    /// the cut are busy with what crosses it.
    #[must_use]
    pub fn cut_costs(mut self, costs: impl Into<Vec<f64>>) -> Self {
        self.cut_costs = Some(costs.into());
        self
    }

    /// The needs of each layer, and the capacity of each rank.
    #[must_use]
    pub fn memory(mut self, memory: Memory) -> Self {
        self.memory = Some(memory);
        self
    }

    /// The rank of each part, as an interleaved schedule places them. By default part `p` is on
    /// rank `p`.
    #[must_use]
    pub fn placement(mut self, ranks: impl Into<Vec<usize>>) -> Self {
        self.placement = Some(ranks.into());
        self
    }

    /// Puts a layer into a part.
    #[must_use]
    pub fn pin(mut self, layer: usize, part: usize) -> Self {
        self.pins.push((layer, part));
        self
    }

    /// Cuts nowhere within these layers.
    #[must_use]
    pub fn together(mut self, layers: Range<usize>) -> Self {
        self.groups.push(layers);
        self
    }

    /// The partition, with what is known about how good it is.
    ///
    /// # Errors
    ///
    /// - [`PartitionError::DoesNotFit`] if the layers need more memory than there is, however they
    ///   are cut.
    /// - [`PartitionError::NotFound`] if several parts share a rank and no cut that fits was found
    ///   among those looked at, which proves nothing.
    /// - [`PartitionError::NoPartition`] if pins and groups contradict each other.
    /// - [`PartitionError::Constraint`] if a constraint is for another number of layers or ranks,
    ///   or isn't a number.
    /// - Those of every [`Partitioner`].
    pub fn solve(&self, costs: &Costs, parts: usize) -> Result<Solution, PartitionError> {
        costs.check_parts(parts)?;
        search::solve(&self.parts(costs, parts)?)
    }

    fn parts<'a>(&'a self, costs: &'a Costs, parts: usize) -> Result<Parts<'a>, PartitionError> {
        let layers = costs.len();
        let wrong =
            |what: &'static str, reason: String| PartitionError::Constraint { what, reason };
        let placement = self.placement.clone().unwrap_or_else(|| (0..parts).collect());
        let ranks = placement.iter().max().map_or(0, |last| last.saturating_add(1));
        if (0..ranks).any(|rank| !placement.contains(&rank)) {
            let reason = "a rank below the last has no part: number them from 0 on";
            return Err(wrong("placement", reason.to_owned()));
        }
        let count = |what, given: usize, needed: usize, each: &str| {
            let reason = format!("there are {given}, but {needed} {each}: give one for each");
            if given == needed { Ok(()) } else { Err(wrong(what, reason)) }
        };
        count("placement", placement.len(), parts, "parts")?;
        if let Some(speeds) = &self.speeds {
            count("speeds", speeds.len(), ranks, "ranks")?;
            if let Some(speed) = speeds.iter().find(|s| !s.is_normal() || s.is_sign_negative()) {
                return Err(wrong("speeds", format!("{speed} isn't one: give numbers above 0")));
            }
        }
        if let Some(cuts) = &self.cut_costs {
            count("cut costs", cuts.len(), layers - 1, "places between two layers")?;
            if let Some(cost) = cuts.iter().find(|c| !c.is_finite() || **c < 0.0) {
                return Err(wrong("cut costs", format!("{cost} isn't finite and at least 0")));
            }
        }
        if let Some(memory) = &self.memory {
            count("layers' bytes", memory.layers.len(), layers, "layers")?;
            count("numbers in flight", memory.in_flight.len(), parts, "parts")?;
            count("capacities", memory.capacities.len(), ranks, "ranks")?;
        }
        let mut open = vec![true; layers + 1];
        for group in &self.groups {
            if group.end > layers {
                let reason = format!("{group:?} reaches past the last of {layers} layers");
                return Err(wrong("together", reason));
            }
            for cut in group.clone().skip(1) {
                open[cut] = false;
            }
        }
        let mut only = vec![None; layers];
        for &(layer, part) in &self.pins {
            if layer >= layers || part >= parts {
                let reason = format!(
                    "there is no layer {layer} or no part {part} among {layers} layers and {parts} parts"
                );
                return Err(wrong("pin", reason));
            }
            if only[layer].is_some_and(|other| other != part) {
                return Err(wrong("pin", format!("layer {layer} is pinned to two parts")));
            }
            only[layer] = Some(part);
        }
        let parts = Parts {
            costs,
            count: parts,
            ranks,
            placement,
            speeds: self.speeds.as_deref(),
            cut_costs: self.cut_costs.as_deref(),
            memory: self.memory.as_ref(),
            open,
            only,
        };
        // That of every part, because several parts on a rank add up.
        if !(parts.longest() * parts.count as f64).is_finite() {
            let reason = "times add up to infinity: give costs in a larger unit".to_owned();
            return Err(wrong("speeds and cut costs", reason));
        }
        Ok(parts)
    }
}

impl Partitioner for ConstrainedMinimax {
    fn partition(&self, costs: &Costs, parts: usize) -> Result<Partition, PartitionError> {
        self.solve(costs, parts).map(|solution| solution.partition)
    }

    fn name(&self) -> &str {
        NAMED.name
    }
}
