//! Budgets against all ways to treat the layers, and against what programs hold.

use proptest::prelude::*;
use stovepipe_schedule::{
    Edges, GPipe, Interleaved1F1B, LayerMemory, MicroBatch, OneFOneB, Program, Schedule, Shape,
    StageMemory,
};

use super::*;
use crate::{Always, Never};

fn layer(bytes: u64, input: u64, recompute: f64) -> LayerActivations {
    let memory = LayerMemory { activations: bytes, input, ..LayerMemory::default() };
    LayerActivations { memory, recompute }
}

/// Each layer's output is the next one's input.
fn chained(mut layers: Vec<LayerActivations>, output: u64) -> Vec<LayerActivations> {
    let next: Vec<u64> = layers.iter().skip(1).map(|l| l.memory.input).chain([output]).collect();
    for (layer, output) in layers.iter_mut().zip(next) {
        layer.memory.output = output;
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
            let layers = own.iter().map(|layer| layer.memory).collect();
            StageMemory { layers, ..StageMemory::default() }
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
    // One byte less: the fastest is one layer again, whose input stays: 3 layers and an input of
    // four micro-batches, and one layer rebuilt.
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
    let all: u64 = layers.iter().map(|l| l.memory.activations).sum();
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
        let bytes: u64 = layers[segment.clone()].iter().map(|l| l.memory.activations).sum();
        bytes + layers[segment.end - 1].memory.output - layers[segment.start].memory.input
    };
    let is_dropped = |place: usize| dropped.iter().any(|segment| segment.contains(&place));
    let starts = |place: usize| dropped.iter().any(|segment| segment.start == place);
    let kept = layers.iter().enumerate().map(|(place, layer)| match is_dropped(place) {
        true if starts(place) => layer.memory.input,
        true => 0,
        false if place + 1 == layers.len() => layer.memory.activations + layer.memory.output,
        false => layer.memory.activations,
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
        let mut one = layer(30, 7, 1.0);
        (one.memory.forward, one.memory.backward) = (working, working);
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
