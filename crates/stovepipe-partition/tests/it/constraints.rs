//! `ConstrainedMinimax` against every partition there is, under random constraints; and what it
//! says where nothing fits.

use proptest::prelude::*;
use stovepipe_partition::{
    ConstrainedMinimax, Costs, LayerBytes, Memory, Minimax, Partition, PartitionError, Partitioner,
};

/// Constraints for `costs.len()` layers in `ranks * stages_per_rank` parts; times are exact:
/// whole-number costs, speeds that are powers of two.
#[derive(Debug, Clone)]
struct Request {
    costs: Vec<f64>,
    ranks: usize,
    stages_per_rank: usize,
    back: bool,
    speeds: Vec<f64>,
    cuts: Vec<f64>,
    memory: Memory,
    pins: Vec<(usize, usize)>,
    groups: Vec<(usize, usize)>,
}

impl Request {
    fn parts(&self) -> usize {
        self.ranks * self.stages_per_rank
    }

    /// In turns, or there and back as in V-shaped schedules.
    fn placement(&self) -> Vec<usize> {
        let there = 0..self.ranks;
        let round = |local: usize| -> Vec<usize> {
            if self.back && local % 2 == 1 {
                there.clone().rev().collect()
            } else {
                there.clone().collect()
            }
        };
        (0..self.stages_per_rank).flat_map(round).collect()
    }

    fn partitioner(&self) -> ConstrainedMinimax {
        let mut partitioner = ConstrainedMinimax::new()
            .speeds(self.speeds.clone())
            .cut_costs(self.cuts.clone())
            .memory(self.memory.clone())
            .placement(self.placement());
        for &(layer, part) in &self.pins {
            partitioner = partitioner.pin(layer, part);
        }
        for &(start, end) in &self.groups {
            partitioner = partitioner.together(start..end);
        }
        partitioner
    }

    /// The time of each part.
    fn times(&self, partition: &Partition) -> Vec<f64> {
        let cut =
            |at: usize| if at == 0 || at == self.costs.len() { 0.0 } else { self.cuts[at - 1] };
        let placement = self.placement();
        let time = |(part, range): (usize, std::ops::Range<usize>)| {
            let sum: f64 = self.costs[range.clone()].iter().sum();
            sum / self.speeds[placement[part]] + cut(range.start) + cut(range.end)
        };
        partition.ranges().enumerate().map(time).collect()
    }

    /// How long each rank is busy.
    fn loads(&self, partition: &Partition) -> Vec<f64> {
        let mut loads = vec![0.0; self.ranks];
        for (rank, time) in self.placement().into_iter().zip(self.times(partition)) {
            loads[rank] += time;
        }
        loads
    }

    fn allows(&self, partition: &Partition) -> bool {
        let pinned = self.pins.iter().all(|&(layer, part)| partition.part_of(layer) == part);
        let grouped = self.groups.iter().all(|&(start, end)| {
            (start + 1..end).all(|layer| partition.part_of(layer) == partition.part_of(layer - 1))
        });
        let placement = self.placement();
        let mut holds = vec![0; self.ranks];
        let mut works = vec![0; self.ranks];
        for (part, range) in partition.ranges().enumerate() {
            let kept = self.memory.in_flight[part] as u64;
            let layers = &self.memory.layers[range];
            let rank = placement[part];
            holds[rank] += layers[0].entry * kept;
            holds[rank] += layers.iter().map(|l| l.fixed + l.kept * kept).sum::<u64>();
            works[rank] = works[rank].max(layers.iter().map(|l| l.working).sum::<u64>());
        }
        let fits = (0..self.ranks).all(|r| holds[r] + works[r] <= self.memory.capacities[r]);
        pinned && grouped && fits
    }

    /// Bottleneck, squares and ends: the smallest is the best.
    fn rank(&self, partition: &Partition) -> (f64, f64, Vec<usize>) {
        let loads = self.loads(partition);
        let bottleneck = loads.iter().copied().fold(0.0, f64::max);
        let ends = partition.ranges().map(|range| range.end).collect();
        (bottleneck, loads.iter().map(|load| load * load).sum(), ends)
    }

    fn best(&self) -> Option<Partition> {
        all_partitions(self.costs.len(), self.parts())
            .into_iter()
            .filter(|partition| self.allows(partition))
            .min_by(|a, b| self.rank(a).partial_cmp(&self.rank(b)).expect("numbers"))
    }
}

fn all_partitions(layers: usize, parts: usize) -> Vec<Partition> {
    fn sizes(layers: usize, parts: usize) -> Vec<Vec<usize>> {
        if parts == 1 {
            return vec![vec![layers]];
        }
        let first = 1..=layers - (parts - 1);
        first
            .flat_map(|size| {
                let rest = sizes(layers - size, parts - 1);
                rest.into_iter().map(move |rest| [vec![size], rest].concat())
            })
            .collect()
    }
    let all = sizes(layers, parts).into_iter();
    all.map(|sizes| Partition::from_sizes(sizes).expect("no size is 0")).collect()
}

fn request(stages_per_rank: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Request> {
    (1..=4usize, stages_per_rank).prop_flat_map(|(ranks, stages_per_rank)| {
        let parts = ranks * stages_per_rank;
        (parts..=parts.max(10)).prop_flat_map(move |layers| {
            let bytes =
                (0..8u64, 0..3u64, 0..3u64, 0..4u64).prop_map(|(fixed, kept, entry, working)| {
                    LayerBytes { fixed, kept, entry, working }
                });
            let memory = (
                prop::collection::vec(bytes, layers),
                prop::collection::vec(1..4usize, parts),
                prop::collection::vec(prop_oneof![10..60u64, Just(1000)], ranks),
            )
                .prop_map(|(layers, in_flight, capacities)| Memory {
                    layers,
                    in_flight,
                    capacities,
                });
            (
                prop::collection::vec((0..12u32).prop_map(f64::from), layers),
                prop::collection::vec(prop_oneof![Just(1.0), Just(2.0), Just(0.5)], ranks),
                prop::collection::vec((0..3u32).prop_map(f64::from), layers - 1),
                memory,
                prop::collection::vec((0..layers, 0..parts), 0..2),
                prop::collection::vec((0..layers, 0..=layers), 0..2),
                any::<bool>(),
            )
                .prop_map(move |(costs, speeds, cuts, memory, pins, groups, back)| {
                    Request {
                        costs,
                        ranks,
                        stages_per_rank,
                        back,
                        speeds,
                        cuts,
                        memory,
                        pins,
                        groups,
                    }
                })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_part_on_each_rank_is_cut_as_well_as_can_be(request in request(1..=1)) {
        let costs = Costs::new(request.costs.clone()).expect("valid costs");
        let found = request.partitioner().solve(&costs, request.parts());
        match request.best() {
            Some(best) => {
                let found = found.expect("there is one");
                prop_assert_eq!(&found.partition, &best);
                prop_assert_eq!(found.bottleneck, request.rank(&best).0);
                prop_assert_eq!(found.bound, found.bottleneck);
            }
            None => prop_assert!(
                matches!(found, Err(PartitionError::DoesNotFit { .. } | PartitionError::NoPartition)),
                "{found:?}"
            ),
        }
    }

    #[test]
    fn several_parts_on_a_rank_are_searched_to_the_end(request in request(2..=3)) {
        let costs = Costs::new(request.costs.clone()).expect("valid costs");
        let found = request.partitioner().solve(&costs, request.parts());
        match request.best() {
            Some(best) => {
                let found = found.expect("there is one");
                let (bottleneck, squares, _) = request.rank(&best);
                let (found_bottleneck, found_squares, _) = request.rank(&found.partition);
                prop_assert!(request.allows(&found.partition));
                prop_assert_eq!((found_bottleneck, found_squares), (bottleneck, squares));
                prop_assert_eq!((found.bottleneck, found.bound), (bottleneck, bottleneck));
            }
            None => prop_assert!(
                matches!(found, Err(PartitionError::DoesNotFit { .. } | PartitionError::NoPartition)),
                "{found:?}"
            ),
        }
    }

    #[test]
    fn without_constraints_it_is_minimax(
        costs in prop::collection::vec((0..20u32).prop_map(f64::from), 1..=12),
        parts in 1..=12usize,
    ) {
        let costs = Costs::new(costs).expect("valid costs");
        prop_assert_eq!(ConstrainedMinimax::new().partition(&costs, parts), Minimax.partition(&costs, parts));
    }
}

#[test]
fn what_is_missing_is_named() {
    let layers = vec![LayerBytes { fixed: 10, ..LayerBytes::default() }; 6];
    let memory = Memory { layers, in_flight: vec![1, 1], capacities: vec![25, 20] };
    let error = ConstrainedMinimax::new()
        .memory(memory)
        .partition(&Costs::uniform(6).expect("valid"), 2)
        .expect_err("60 bytes don't fit into 45");
    assert_eq!(
        error.to_string(),
        "the layers don't fit: cut into [3, 3], which comes closest, rank 0 needs 30 bytes and lacks 5, \
         rank 1 needs 30 bytes and lacks 10; use more ranks or more memory, keep fewer micro-batches, \
         or recompute activations"
    );
}

#[test]
fn contradictions_and_wrong_counts_are_refused() {
    let costs = Costs::uniform(4).expect("valid");
    let refused = |partitioner: ConstrainedMinimax| {
        partitioner.partition(&costs, 2).expect_err("refused").to_string()
    };
    let new = ConstrainedMinimax::new;
    assert!(refused(new().pin(0, 1)).contains("drop a pin"));
    assert!(refused(new().pin(2, 0).pin(1, 1)).contains("drop a pin"));
    assert!(refused(new().together(0..4)).contains("drop a pin or a group"));
    assert!(refused(new().pin(1, 0).pin(1, 1)).contains("layer 1 is pinned to two parts"));
    assert!(refused(new().pin(4, 0)).contains("there is no layer 4"));
    assert!(refused(new().together(2..5)).contains("2..5 reaches past the last of 4 layers"));
    assert!(refused(new().speeds([1.0])).contains("there are 1, but 2 ranks"));
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(new().speeds([1.0, speed])).contains("above 0"), "{speed}");
    }
    assert!(refused(new().cut_costs([1.0, f64::NAN, 1.0])).contains("finite"));
    assert!(refused(new().cut_costs([1.0])).contains("3 places between two layers"));
    assert!(refused(new().placement([0])).contains("there are 1, but 2 parts"));
    assert!(refused(new().placement([0, 2])).contains("a rank below the last has no part"));
}

#[test]
fn large_requests_with_several_parts_on_a_rank_end_and_say_how_good_they_are() {
    let costs: Vec<f64> = (0..200).map(|i| 1.0 + (f64::from(i) * 0.618_034).fract()).collect();
    let costs = Costs::new(costs).expect("valid costs");
    let found = ConstrainedMinimax::new()
        .placement((0..32).map(|part| part % 8).collect::<Vec<_>>())
        .solve(&costs, 32)
        .expect("can be cut");
    assert!(found.bound <= found.bottleneck && found.bottleneck < 1.1 * found.bound, "{found:?}");
}

/// Layers on ranks in turns, so many parts on each, limited to these bytes.
fn limited(layers: &[LayerBytes], ranks: usize, rounds: usize, capacities: Vec<u64>) -> Memory {
    let (layers, in_flight) = (layers.to_vec(), vec![1; ranks * rounds]);
    Memory { layers, in_flight, capacities }
}

fn in_turns(ranks: usize, rounds: usize) -> Vec<usize> {
    (0..ranks * rounds).map(|part| part % ranks).collect()
}

#[test]
fn ranks_with_several_parts_are_filled_to_the_brim() {
    let layers = vec![LayerBytes { fixed: 1, ..LayerBytes::default() }; 100];
    let costs = Costs::uniform(100).expect("costs");
    let partitioner = |capacity: u64| {
        ConstrainedMinimax::new().placement(in_turns(8, 2)).memory(limited(
            &layers,
            8,
            2,
            vec![capacity; 8],
        ))
    };
    let found = partitioner(13).partition(&costs, 16).expect("it fits");
    let sizes = found.sizes();
    assert!((0..8).all(|rank| sizes[rank] + sizes[rank + 8] <= 13), "{found}");
    // 96 bytes are less than the layers have.
    let error = partitioner(12).partition(&costs, 16).expect_err("it can't fit");
    assert!(matches!(error, PartitionError::DoesNotFit { .. }), "{error}");
    let PartitionError::DoesNotFit { needed, memory, .. } = error else { return };
    assert!(needed.iter().zip(&memory).any(|(needed, has)| needed > has));
}

#[test]
fn what_was_not_found_is_told_from_what_cannot_be() {
    // Even and odd bytes: the sum would fit, and no cut does. There are too many to look at all.
    let bytes = |layer: usize| if layer.is_multiple_of(2) { 1_000_000 } else { 3 };
    let layers = |count| -> Vec<LayerBytes> {
        let layers = (0..count).map(bytes);
        layers.map(|fixed| LayerBytes { fixed, ..LayerBytes::default() }).collect()
    };
    let error = |count: usize, ranks: usize| {
        let costs = Costs::uniform(count).expect("costs");
        let all: u64 = (0..count).map(bytes).sum();
        // Half a large layer more than an even share.
        let capacity = all / ranks as u64 + 400_000;
        let memory = limited(&layers(count), ranks, 2, vec![capacity; ranks]);
        let partitioner = ConstrainedMinimax::new().placement(in_turns(ranks, 2)).memory(memory);
        partitioner.partition(&costs, 2 * ranks).expect_err("nothing fits")
    };
    // 31 large layers on 7 ranks are 5 somewhere.
    let many = error(62, 7);
    assert!(matches!(many, PartitionError::NotFound { .. }), "{many}");
    assert!(many.to_string().contains("though there may be one"), "{many}");
    let few = error(10, 2);
    assert!(matches!(few, PartitionError::DoesNotFit { .. }), "{few}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn tight_cuts_that_are_there_are_found(
        ranks in 2usize..9, rounds in 2usize..4, seed in any::<u64>(), per_part in 4usize..9,
    ) {
        let parts = ranks * rounds;
        let mut state = seed | 1;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let sizes: Vec<usize> = (0..parts).map(|_| 1 + next(2 * per_part as u64) as usize).collect();
        let count: usize = sizes.iter().sum();
        let layers: Vec<LayerBytes> = (0..count)
            .map(|_| LayerBytes { fixed: 50 + next(100), kept: next(50), ..LayerBytes::default() })
            .collect();
        // As much as a known cut needs, and a layer's worth.
        let mut capacities = vec![100; ranks];
        let mut start = 0;
        for (part, size) in sizes.iter().enumerate() {
            let bytes = layers[start..start + size].iter().map(|layer| layer.fixed + layer.kept);
            capacities[part % ranks] += bytes.sum::<u64>();
            start += size;
        }
        let memory = limited(&layers, ranks, rounds, capacities);
        let costs = Costs::uniform(count).expect("costs");
        let partitioner = ConstrainedMinimax::new().placement(in_turns(ranks, rounds)).memory(memory);
        let found = partitioner.partition(&costs, parts);
        prop_assert!(found.is_ok(), "{:?}", found);
    }
}
