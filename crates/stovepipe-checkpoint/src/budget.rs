//! The policy that recomputes as little as a limit of memory allows.

use std::ops::Range;

use stovepipe_schedule::{MicroBatch, Plan, Retention, Stage, StageRetention};

use crate::{CheckpointPolicy, Layout, PolicyError};

/// What a layer costs to keep and to compute again, for one micro-batch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LayerActivations {
    /// Bytes that its backward needs, its input included and its output not.
    pub bytes: u64,
    /// Bytes of its input alone.
    pub input: u64,
    /// Bytes of its output alone.
    pub output: u64,
    /// Bytes that its forward or its backward needs for the moment, the larger of both.
    pub working: u64,
    /// Time of its forward, in any unit.
    pub recompute: f64,
}

/// Recomputes as little as possible so that the activations of every rank fit into a budget of bytes.
///
/// For each rank, segments of its layers are dropped so that the bytes kept for all micro-batches in
/// flight, plus those of the largest segment rebuilt, plus what a layer needs for the moment and a value
/// that arrives, are within the budget, and the time of recomputation is the least. Found by dynamic
/// programming over the layers: for each size that the largest segment may have, the ways to treat the
/// layers so far that aren't worse than another in both bytes and time. Exact as long as a rank's segments have at most 64 different sizes (64 equal layers)
/// and no more than 512 ways remain at once. Beyond that the sizes are thinned out, or bytes rounded up to
/// a 512th of the budget: what is found fits still, but something might recompute a little less.
///
/// A rank with several stages is counted as if each held its most micro-batches at the same time, and a
/// micro-batch as if nothing of it were let go of while its segments are rebuilt. Parameters, gradients and
/// optimizer state are not activations: take them off the budget.
#[derive(Clone, PartialEq, Debug)]
pub struct Budget {
    bytes: u64,
    layers: Vec<LayerActivations>,
}

/// How many ways to treat the layers are followed at once.
const MAX_WAYS: usize = 512;
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
        "budget"
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
        let of = |stage: Stage, _: MicroBatch| stages[stage.index()].clone();
        Ok(Retention::from_fn(plan, of))
    }
}

/// Layers that are treated as one, and whether they are dropped.
type Piece = (Range<usize>, bool);

/// A way to treat the layers up to some place.
#[derive(Clone, Copy)]
struct Way {
    bytes: u64,
    time: f64,
    /// Where its last piece starts and whether that is dropped, and the way before it.
    piece: (usize, bool),
    before: usize,
}

/// One layer of a rank, in the order of its stages.
#[derive(Clone, Copy)]
struct Place {
    layer: LayerActivations,
    /// Micro-batches in flight.
    in_flight: u64,
    /// The first place of its stage.
    start: usize,
    /// Whether it is the last one.
    ends: bool,
    /// The bytes of all layers before it.
    before: u64,
}

impl Place {
    /// What all micro-batches in flight hold if its activations are kept; its output is the next layer's
    /// input, and beyond the last one stays on its tape.
    fn kept(&self) -> u64 {
        let output = if self.ends { self.layer.output } else { 0 };
        self.in_flight.saturating_mul(self.layer.bytes.saturating_add(output))
    }
}

impl Budget {
    /// What a rank needs beside what it keeps and rebuilds.
    fn for_the_moment(&self, plan: &Plan, rank: usize, ranges: &[Range<usize>]) -> u64 {
        let of = |stage: &Stage| {
            let range = ranges[stage.index()].clone();
            let (first, last) = (self.layers[range.start], self.layers[range.end - 1]);
            let working = self.layers[range].iter().map(|layer| layer.working).max();
            let elsewhere = |other: Option<usize>| {
                let other = other.and_then(|other| plan.placement().get(other));
                other.is_some_and(|other| other.index() != rank)
            };
            let arrives = [
                (elsewhere(stage.index().checked_sub(1)), first.input),
                (elsewhere(Some(stage.index() + 1)), last.output),
            ];
            let arriving = arrives.into_iter().filter(|(does, _)| *does).map(|(_, bytes)| bytes);
            (working.unwrap_or(0), arriving.max().unwrap_or(0))
        };
        let (working, arriving): (Vec<u64>, Vec<u64>) = plan.stages_of(rank).iter().map(of).unzip();
        let largest = |bytes: Vec<u64>| bytes.into_iter().max().unwrap_or(0);
        largest(working).saturating_add(largest(arriving))
    }

    /// The dropped segments of each stage of a rank.
    fn solve(
        &self,
        plan: &Plan,
        rank: usize,
        ranges: &[Range<usize>],
    ) -> Result<Vec<Vec<Range<usize>>>, PolicyError> {
        let in_flight = plan.stage_activations();
        let mut places = Vec::new();
        for stage in plan.stages_of(rank) {
            let start = places.len();
            let in_flight = in_flight[stage.index()] as u64;
            let layers = ranges[stage.index()].clone();
            let last = layers.end - 1;
            places.extend(layers.map(|l| {
                let (layer, ends) = (self.layers[l], l == last);
                Place { layer, in_flight, start, ends, before: 0 }
            }));
        }
        let mut before = 0u64;
        for place in &mut places {
            place.before = before;
            before = before.saturating_add(place.layer.bytes);
        }
        let moment = self.for_the_moment(plan, rank, ranges);
        let mut rebuilt: Vec<u64> = vec![0];
        for end in 1..=places.len() {
            rebuilt.extend((places[end - 1].start..end).map(|start| segment(&places[start..end])));
        }
        rebuilt.sort_unstable();
        rebuilt.dedup();
        let rebuilt = thinned_sizes(rebuilt, MAX_LIMITS, 0);
        let needs = |size: &u64| least_kept(&places, *size).saturating_add(*size);
        let leanest = rebuilt.iter().copied().min_by_key(needs).unwrap_or(0);
        let least = needs(&leanest).saturating_add(moment);
        let mut best: Option<(f64, Vec<Piece>)> = None;
        for largest in thinned_sizes(rebuilt, MAX_SIZES, leanest) {
            let room = self.bytes.checked_sub(moment).and_then(|room| room.checked_sub(largest));
            let Some(room) = room else { continue };
            let limit = best.as_ref().map_or(f64::INFINITY, |(time, _)| *time);
            if let Some(found) = Ways::search(&places, largest, room, limit).fastest() {
                best = Some(found);
            }
        }
        let Some((_, pieces)) = best else {
            return Err(PolicyError::Budget { rank, least, budget: self.bytes });
        };
        let mut dropped = Vec::new();
        let mut start = 0;
        for stage in plan.stages_of(rank) {
            let layers = ranges[stage.index()].len();
            let own = pieces.iter().filter(|(piece, is_dropped)| {
                *is_dropped && (start..start + layers).contains(&piece.start)
            });
            dropped.push(own.map(|(piece, _)| piece.start - start..piece.end - start).collect());
            start += layers;
        }
        Ok(dropped)
    }
}

/// What is rebuilt of a dropped segment, its output included and its kept input not counted again.
fn segment(places: &[Place]) -> u64 {
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return 0 };
    let bytes = last.before.saturating_add(last.layer.bytes).saturating_sub(first.before);
    bytes.saturating_add(last.layer.output).saturating_sub(first.layer.input)
}

/// Sizes, ascending, or if there are too many some of them: the largest, none at all, and `leanest`
/// included.
fn thinned_sizes(sizes: Vec<u64>, most: usize, leanest: u64) -> Vec<u64> {
    let step = sizes.len().div_ceil(most);
    let last = sizes.len() - 1;
    let stays = |(place, size): &(usize, u64)| {
        (last - place).is_multiple_of(step) || *size == 0 || *size == leanest
    };
    sizes.into_iter().enumerate().filter(stays).map(|(_, size)| size).collect()
}

/// The fewest bytes that are kept with segments that rebuild at most `largest`.
fn least_kept(places: &[Place], largest: u64) -> u64 {
    let mut least = vec![0u64];
    for end in 1..=places.len() {
        let place = places[end - 1];
        let mut fewest = least[end - 1].saturating_add(place.kept());
        for start in (place.start..end).rev() {
            if segment(&places[start..end]) > largest {
                break;
            }
            let input = places[start].layer.input.saturating_mul(place.in_flight);
            fewest = fewest.min(least[start].saturating_add(input));
        }
        least.push(fewest);
    }
    least[places.len()]
}

/// For each number of layers from the front, the ways that aren't worse than another in both bytes and
/// time, by bytes ascending.
struct Ways {
    table: Vec<Vec<Way>>,
}

impl Ways {
    /// With segments that rebuild at most `largest`, within `room` bytes and below `limit` of time.
    fn search(places: &[Place], largest: u64, room: u64, limit: f64) -> Self {
        let none = Way { bytes: 0, time: 0.0, piece: (0, false), before: 0 };
        let mut table = vec![vec![none]];
        for end in 1..=places.len() {
            let place = places[end - 1];
            let mut ways = Vec::new();
            let mut extend = |from: usize, bytes: u64, time: f64, is_dropped: bool| {
                let piece = (from, is_dropped);
                let extended = table[from].iter().enumerate().map(|(before, way): (_, &Way)| {
                    let (bytes, time) = (way.bytes.saturating_add(bytes), way.time + time);
                    Way { bytes, time, piece, before }
                });
                ways.extend(extended.filter(|way| way.bytes <= room && way.time < limit));
            };
            extend(end - 1, place.kept(), 0.0, false);
            let mut time = 0.0;
            for start in (place.start..end).rev() {
                if segment(&places[start..end]) > largest {
                    break;
                }
                time += places[start].layer.recompute;
                let input = places[start].layer.input.saturating_mul(place.in_flight);
                extend(start, input, time, true);
            }
            table.push(thinned(ways, room));
        }
        Self { table }
    }

    /// The fastest: its time, and the pieces and whether each is dropped.
    fn fastest(&self) -> Option<(f64, Vec<Piece>)> {
        let mut end = self.table.len() - 1;
        // By bytes ascending is by time descending.
        let mut way = *self.table[end].last()?;
        let time = way.time;
        let mut pieces = Vec::new();
        while end > 0 {
            let (start, is_dropped) = way.piece;
            pieces.push((start..end, is_dropped));
            way = self.table[start][way.before];
            end = start;
        }
        pieces.reverse();
        Some((time, pieces))
    }
}

/// Leaves out what is worse than another in both, and rounds bytes where too many ways remain.
fn thinned(mut ways: Vec<Way>, room: u64) -> Vec<Way> {
    let thin = |ways: &mut Vec<Way>| {
        ways.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.time.total_cmp(&b.time)));
        let mut fastest = f64::INFINITY;
        ways.retain(|way| {
            let better = way.time < fastest;
            fastest = fastest.min(way.time);
            better
        });
    };
    thin(&mut ways);
    if ways.len() > MAX_WAYS {
        let unit = room.div_ceil(MAX_WAYS as u64).max(1);
        for way in &mut ways {
            way.bytes = way.bytes.div_ceil(unit).saturating_mul(unit);
        }
        ways.retain(|way| way.bytes <= room);
        thin(&mut ways);
    }
    ways
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stovepipe_schedule::{
        Edges, GPipe, Interleaved1F1B, LayerMemory, OneFOneB, Program, Schedule, Shape, StageMemory,
    };

    use super::*;
    use crate::{Always, Never};

    fn layer(bytes: u64, input: u64, recompute: f64) -> LayerActivations {
        LayerActivations { bytes, input, recompute, ..LayerActivations::default() }
    }

    /// Each layer's output is the next one's input.
    fn chained(mut layers: Vec<LayerActivations>, output: u64) -> Vec<LayerActivations> {
        let next: Vec<u64> = layers.iter().skip(1).map(|l| l.input).chain([output]).collect();
        for (layer, output) in layers.iter_mut().zip(next) {
            layer.output = output;
        }
        layers
    }

    /// The peak of each rank as the simulator counts it.
    fn peaks(plan: &Plan, sizes: &[usize], layers: &[LayerActivations], r: &Retention) -> Vec<u64> {
        let program = Program::lower(plan, &Edges::chain(plan.stages()), r).expect("lowers");
        let mut rest = layers;
        let stages: Vec<StageMemory> = sizes
            .iter()
            .map(|&size| {
                let (own, other) = rest.split_at(size);
                rest = other;
                let layer = |l: &LayerActivations| LayerMemory {
                    activations: l.bytes,
                    input: l.input,
                    output: l.output,
                    forward: l.working,
                    backward: l.working,
                    ..LayerMemory::default()
                };
                StageMemory { layers: own.iter().map(layer).collect(), ..StageMemory::default() }
            })
            .collect();
        (0..plan.ranks()).map(|rank| program.peak_bytes(rank, &stages)).collect()
    }

    fn decide(
        policy: &dyn CheckpointPolicy,
        plan: &Plan,
        sizes: &[usize],
    ) -> Result<Retention, PolicyError> {
        policy.retention(Layout::new(plan, sizes).expect("fits"))
    }

    #[test]
    fn much_memory_keeps_all_and_little_says_what_is_missing() {
        let plan = GPipe::default().plan(Shape::new(1, 4)).expect("a plan");
        let layers = chained(vec![layer(100, 10, 1.0); 4], 0);
        let never = decide(&Never, &plan, &[4]).expect("decides");
        assert_eq!(decide(&Budget::new(1600, layers.clone()), &plan, &[4]), Ok(never));
        // One byte less: the fastest is one layer again, whose input stays: 3 layers and an input of four
        // micro-batches, and one layer rebuilt.
        let found = decide(&Budget::new(1599, layers.clone()), &plan, &[4]).expect("fits");
        assert_eq!(found.of(Stage::new(0), MicroBatch::new(0)).dropped().len(), 1);
        assert_eq!(peaks(&plan, &[4], &layers, &found), [4 * 310 + 90]);
        // All of it from one input: 4 inputs, and 390 rebuilt; each layer from its own: 160 and 90.
        let error = decide(&Budget::new(100, layers), &plan, &[4]).expect_err("too little");
        assert_eq!(error, PolicyError::Budget { rank: 0, least: 160 + 100, budget: 100 });
    }

    #[test]
    fn costs_are_checked() {
        let plan = GPipe::default().plan(Shape::new(1, 1)).expect("a plan");
        let error = decide(&Budget::new(9, vec![layer(1, 1, 1.0)]), &plan, &[2]);
        assert_eq!(error, Err(PolicyError::Costs { found: 1, layers: 2 }));
        let error = decide(&Budget::new(9, vec![layer(1, 1, -1.0)]), &plan, &[1]);
        assert_eq!(error, Err(PolicyError::Time { layer: 0, time: -1.0 }));
    }

    #[test]
    fn a_hundred_layers_with_costs_of_their_own_take_no_time() {
        let plan = OneFOneB.plan(Shape::new(1, 8)).expect("a plan");
        let layers: Vec<_> = (0..100u64)
            .map(|i| layer(1000 + i * 7919 % 997, 100 + i * 31 % 89, 1.0 + (i % 13) as f64 / 7.0))
            .collect();
        let layers = chained(layers, 0);
        let all: u64 = layers.iter().map(|l| l.bytes).sum();
        let found = decide(&Budget::new(all / 2, layers.clone()), &plan, &[100]).expect("fits");
        assert!(peaks(&plan, &[100], &layers, &found)[0] <= all / 2);
        // With thousands of sizes, too, what is said to be the least is enough, and all of it is kept
        // where all of it fits.
        let Err(PolicyError::Budget { least, .. }) =
            decide(&Budget::new(1, layers.clone()), &plan, &[100])
        else {
            panic!("one byte is enough");
        };
        assert!(decide(&Budget::new(least, layers.clone()), &plan, &[100]).is_ok());
        let never = decide(&Never, &plan, &[100]).expect("decides");
        let everything = peaks(&plan, &[100], &layers, &never)[0];
        assert_eq!(decide(&Budget::new(everything, layers.clone()), &plan, &[100]), Ok(never));
    }

    /// All ways to treat the layers of one stage.
    fn treatments(layers: usize) -> Vec<Vec<Range<usize>>> {
        let mut all = vec![(0, Vec::new())];
        let mut done = Vec::new();
        while let Some((at, segments)) = all.pop() {
            if at == layers {
                done.push(segments);
                continue;
            }
            all.push((at + 1, segments.clone()));
            for end in at + 1..=layers {
                let mut more = segments.clone();
                more.push(at..end);
                all.push((end, more));
            }
        }
        done
    }

    /// The bytes that a budget is for.
    fn counted(layers: &[LayerActivations], dropped: &[Range<usize>], in_flight: u64) -> u64 {
        let rebuilt = |segment: &Range<usize>| {
            let bytes: u64 = layers[segment.clone()].iter().map(|l| l.bytes).sum();
            bytes + layers[segment.end - 1].output - layers[segment.start].input
        };
        let is_dropped = |place: usize| dropped.iter().any(|segment| segment.contains(&place));
        let starts = |place: usize| dropped.iter().any(|segment| segment.start == place);
        let kept = layers.iter().enumerate().map(|(place, layer)| match is_dropped(place) {
            true if starts(place) => layer.input,
            true => 0,
            false if place + 1 == layers.len() => layer.bytes + layer.output,
            false => layer.bytes,
        });
        in_flight * kept.sum::<u64>() + dropped.iter().map(rebuilt).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn nothing_recomputes_less_within_the_budget(
            layers in prop::collection::vec((1u64..50, 1u64..50, 0u32..9), 1..6),
            m in 1usize..5, budget in 1u64..900, one_f_one_b in any::<bool>(), output in 0u64..50,
        ) {
            let layers: Vec<_> = layers.into_iter()
                .map(|(extra, input, time)| layer(input + extra, input, f64::from(time))).collect();
            let layers = chained(layers, output);
            let schedule: &dyn Schedule =
                if one_f_one_b { &OneFOneB } else { &GPipe::default() };
            let plan = schedule.plan(Shape::new(1, m)).expect("a plan");
            let sizes = [layers.len()];
            let time = |segments: &[Range<usize>]| -> f64 {
                segments.iter().flat_map(|s| &layers[s.clone()]).map(|l| l.recompute).sum()
            };
            let mut best = None::<f64>;
            let mut least = u64::MAX;
            for segments in treatments(layers.len()) {
                let stage = StageRetention::drop_segments(Stage::new(0), layers.len(), segments.clone());
                let stage = stage.expect("segments");
                let retention = Retention::from_fn(&plan, |_, _| stage.clone());
                let peak = counted(&layers, &segments, plan.stage_activations()[0] as u64);
                prop_assert!(peaks(&plan, &sizes, &layers, &retention)[0] <= peak);
                least = least.min(peak);
                if peak <= budget {
                    best = Some(best.map_or(time(&segments), |b| b.min(time(&segments))));
                }
            }
            match decide(&Budget::new(budget, layers.clone()), &plan, &sizes) {
                Ok(found) => {
                    prop_assert!(peaks(&plan, &sizes, &layers, &found)[0] <= budget);
                    let segments = found.of(Stage::new(0), MicroBatch::new(0)).dropped();
                    prop_assert_eq!(Some(time(segments)), best);
                }
                Err(PolicyError::Budget { least: found, .. }) => {
                    prop_assert_eq!(best, None);
                    prop_assert_eq!(found, least);
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }

        #[test]
        fn every_rank_keeps_to_the_budget(
            sizes in prop::collection::vec(1usize..4, 4), m in 1usize..6, part in 1u64..10,
            working in 0u64..40,
        ) {
            let plan = Interleaved1F1B.plan(Shape::new(2, m).with_stages_per_rank(2)).expect("a plan");
            let one = LayerActivations { working, ..layer(30, 7, 1.0) };
            let layers = chained(vec![one; sizes.iter().sum()], 7);
            let all = peaks(&plan, &sizes, &layers, &decide(&Never, &plan, &sizes).expect("decides"));
            let least = peaks(&plan, &sizes, &layers, &decide(&Always, &plan, &sizes).expect("decides"));
            let (most, fewest) = (all.iter().max(), least.iter().max());
            let (most, fewest) = (most.expect("ranks"), fewest.expect("ranks"));
            let budget = fewest + most.saturating_sub(*fewest) * part / 10;
            // What all of it needs at most: everything in flight, a value that arrives, and a moment.
            let enough = most + 2 * (7 + working) * plan.micro_batches() as u64;
            let found = [budget, enough].map(|budget| {
                let found = decide(&Budget::new(budget, layers.clone()), &plan, &sizes).ok()?;
                let peaks = peaks(&plan, &sizes, &layers, &found);
                Some(peaks.iter().all(|peak| *peak <= budget))
            });
            prop_assert!(found[0] != Some(false) && found[1] == Some(true), "{found:?}");
        }
    }
}
