//! Budget: as little recomputation as a limit of memory allows.
//!
//! Here is the rule and what goes into it; the bytes of segments are counted in `rank_layer`, and
//! `ways` searches.

mod rank_layer;
#[cfg(test)]
mod tests;
mod ways;

use std::ops::Range;

use bytesize::ByteSize;
use stovepipe_schedule::{Plan, Retention, Stage, StageRetention};

use self::rank_layer::{least_kept, rank_layers, rebuilt_bytes, thinned_sizes};
use self::ways::{Piece, Ways};
use crate::activations::LayerActivations;
use crate::error::PolicyError;
use crate::named::{NamedPolicy, PolicyFacts};
use crate::policy::{CheckpointPolicy, Layout};

/// Recomputes as little as possible so that the activations of every rank fit into a budget of
/// bytes.
///
/// For each rank, segments of its layers are dropped so that within the budget are together:
///
/// - the bytes kept for all micro-batches in flight,
/// - those of the largest segment rebuilt,
/// - those that a layer needs while it runs, and of a value that arrives.
///
/// Of all such ways, the one that takes the least time to recompute is chosen. It is found by
/// dynamic programming over the layers. For each size that the largest segment may have, it follows
/// the ways to treat the layers so far that aren't worse than another in both bytes and time.
///
/// That is exact as long as a rank's segments have at most 64 different sizes (64 equal layers) and
/// no more than 512 ways remain at once. Beyond that the sizes are thinned out, or bytes rounded up
/// to a 512th of the budget. What is found still fits, but another way might recompute a little
/// less.
///
/// A rank with several stages is counted as if each held its most micro-batches at the same time. A
/// micro-batch is counted as if none of it were freed while its segments are rebuilt. Parameters,
/// gradients and optimizer state are not activations: take them off the budget.
#[derive(Clone, PartialEq, Debug)]
pub struct Budget {
    bytes: u64,
    layers: Vec<LayerActivations>,
}

/// The entry in the list of policies.
pub(super) const NAMED: NamedPolicy = NamedPolicy {
    name: "budget",
    form: "budget=SIZE",
    example: "budget=16GiB",
    summary: "Keeps as much as fits into so many bytes on each rank, with the least to compute again.",
    tuned: false,
    make,
};

fn make(argument: &str, facts: &PolicyFacts) -> Result<Box<dyn CheckpointPolicy>, PolicyError> {
    let bytes: ByteSize = argument.parse().map_err(|_| NAMED.refuse(argument))?;
    let layers = facts.layers.as_ref().ok_or(PolicyError::MissingFact {
        policy: NAMED.name,
        fact: "the bytes and times of the model's layers: give a measured profile's",
    })?;
    Ok(Box::new(Budget::new(bytes.as_u64(), layers.clone())))
}

/// How many sizes are looked at for the one that needs least.
const MAX_LIMITS: usize = 1024;
/// How many sizes of the largest segment are tried.
const MAX_SIZES: usize = 64;

impl Budget {
    /// At most so many bytes on each rank; the costs are those of all layers of the model.
    #[must_use]
    pub fn new(bytes: u64, layers: impl Into<Vec<LayerActivations>>) -> Self {
        Self { bytes, layers: layers.into() }
    }
}

impl CheckpointPolicy for Budget {
    fn name(&self) -> &str {
        NAMED.name
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let plan = layout.plan();
        let mut first = 0;
        let ranges: Vec<Range<usize>> = Stage::first(plan.stages())
            .map(|stage| {
                let start = first;
                first += layout.layers(stage);
                start..first
            })
            .collect();
        if first != self.layers.len() {
            return Err(PolicyError::Costs { found: self.layers.len(), layers: first });
        }
        if let Some(layer) =
            self.layers.iter().position(|l| !(l.recompute.is_finite() && l.recompute >= 0.0))
        {
            let time = self.layers[layer].recompute;
            return Err(PolicyError::Time { layer, time });
        }
        let mut stages = vec![StageRetention::keep_all(); plan.stages()];
        for rank in 0..plan.ranks() {
            let dropped = self.solve(plan, rank, &ranges)?;
            for (&stage, segments) in plan.stages_of(rank).iter().zip(dropped) {
                let layers = layout.layers(stage);
                stages[stage.index()] = StageRetention::drop_segments(stage, layers, segments)?;
            }
        }
        Ok(Retention::from_fn(plan, |stage, _| stages[stage.index()].clone()))
    }
}

impl Budget {
    /// The bytes that a rank needs temporarily, besides what it keeps and rebuilds.
    fn temporary(&self, plan: &Plan, rank: usize, ranges: &[Range<usize>]) -> u64 {
        let (mut working, mut arriving) = (0, 0);
        for &stage in plan.stages_of(rank) {
            let layers = &self.layers[ranges[stage.index()].clone()];
            let (Some(first), Some(last)) = (layers.first(), layers.last()) else { continue };
            let arrives = plan.arriving(stage, first.memory.input, last.memory.output);
            arriving = arrives.max(arriving);
            working = layers.iter().map(|layer| layer.memory.working()).fold(working, u64::max);
        }
        working.saturating_add(arriving)
    }

    /// The dropped segments of each stage of a rank.
    fn solve(
        &self,
        plan: &Plan,
        rank: usize,
        ranges: &[Range<usize>],
    ) -> Result<Vec<Vec<Range<usize>>>, PolicyError> {
        let places = rank_layers(&self.layers, plan, rank, ranges);
        let temporary = self.temporary(plan, rank, ranges);
        let mut rebuilt: Vec<u64> = vec![0];
        for end in 1..=places.len() {
            rebuilt.extend(
                (places[end - 1].start..end).map(|start| rebuilt_bytes(&places[start..end])),
            );
        }
        rebuilt.sort_unstable();
        rebuilt.dedup();
        let rebuilt = thinned_sizes(rebuilt, MAX_LIMITS, 0);
        let needs = |size: &u64| least_kept(&places, *size).saturating_add(*size);
        let leanest = rebuilt.iter().copied().min_by_key(needs).unwrap_or(0);
        let least = needs(&leanest).saturating_add(temporary);
        let mut best: Option<(f64, Vec<Piece>)> = None;
        for largest in thinned_sizes(rebuilt, MAX_SIZES, leanest) {
            let room = self.bytes.checked_sub(temporary).and_then(|room| room.checked_sub(largest));
            let Some(room) = room else { continue };
            let limit = best.as_ref().map_or(f64::INFINITY, |(time, _)| *time);
            if let Some(found) = Ways::search(&places, largest, room, limit).fastest() {
                best = Some(found);
            }
        }
        let Some((_, pieces)) = best else {
            return Err(PolicyError::Budget { rank, least, budget: self.bytes });
        };
        let sizes = plan.stages_of(rank).iter().map(|stage| ranges[stage.index()].len());
        Ok(dropped_segments(&pieces, sizes))
    }
}

/// The dropped pieces of each stage of a rank, counted from its first layer.
fn dropped_segments(
    pieces: &[Piece],
    sizes: impl Iterator<Item = usize>,
) -> Vec<Vec<Range<usize>>> {
    let mut start = 0;
    let segments = sizes.map(|size| {
        let first = start;
        start += size;
        let own = pieces.iter().filter(|(piece, is_dropped)| {
            *is_dropped && (first..first + size).contains(&piece.start)
        });
        own.map(|(piece, _)| piece.start - first..piece.end - first).collect()
    });
    segments.collect()
}
