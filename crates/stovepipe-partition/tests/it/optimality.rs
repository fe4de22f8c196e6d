//! `Minimax` against every partition there is, on random costs; and at a size where trying them all
//! is out of the question.

use proptest::prelude::*;
use stovepipe_partition::{Costs, Minimax, Partition, Partitioner};

/// Every list of `parts` sizes, each at least 1, that add up to `layers`; earlier cuts first.
fn all_sizes(layers: usize, parts: usize) -> Vec<Vec<usize>> {
    if parts == 1 {
        return vec![vec![layers]];
    }
    (1..=layers - (parts - 1))
        .flat_map(|size| {
            all_sizes(layers - size, parts - 1)
                .into_iter()
                .map(move |rest| [vec![size], rest].concat())
        })
        .collect()
}

/// The best of all partitions by bottleneck, then by `squares` of its part costs, then by cuts.
fn best<T: Ord>(costs: &Costs, parts: usize, squares: impl Fn(&[f64]) -> T) -> (f64, Partition) {
    all_sizes(costs.len(), parts)
        .into_iter()
        .map(|sizes| {
            let partition = Partition::from_sizes(sizes).expect("no size is 0");
            let part_costs = partition.costs(costs).expect("as many layers");
            let bottleneck = part_costs.iter().copied().fold(0.0, f64::max);
            (bottleneck, squares(&part_costs), partition)
        })
        // The first of equal ones, and they come with earlier cuts first.
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        .map(|(bottleneck, _, partition)| (bottleneck, partition))
        .expect("at least one partition")
}

fn whole_squares(part_costs: &[f64]) -> u128 {
    part_costs.iter().map(|&cost| (cost as u128).pow(2)).sum()
}

/// Up to 12 costs and a number of parts for them.
fn request(cost: impl Strategy<Value = f64>) -> impl Strategy<Value = (Costs, usize)> {
    prop::collection::vec(cost, 1..=12).prop_flat_map(|costs| {
        let parts = 1..=costs.len();
        (Just(Costs::new(costs).expect("valid costs")), parts)
    })
}

/// Few different values: many zeros, many ties.
fn small_whole() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0u32), 0..4u32, 0..20u32].prop_map(f64::from)
}

/// So different that one layer hides the others, but exact.
fn large_whole() -> impl Strategy<Value = f64> {
    (0..44u32, 0..16u32).prop_map(|(shift, value)| (u64::from(value) << shift) as f64)
}

/// Every finite cost whose sum with eleven others is still finite.
fn any_cost() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..1.0f64,
        (0..0x7fa0_0000_0000_0000u64).prop_map(f64::from_bits),
        Just(0.1),
        Just(0.0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1024,
        // Beside an integration test it finds no place to write to, and says so each time.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn small_whole_costs_give_the_one_best_partition((costs, parts) in request(small_whole())) {
        let (_, expected) = best(&costs, parts, whole_squares);
        prop_assert_eq!(Minimax.partition(&costs, parts), Ok(expected));
    }

    #[test]
    fn large_whole_costs_give_the_one_best_partition((costs, parts) in request(large_whole())) {
        let (_, expected) = best(&costs, parts, whole_squares);
        prop_assert_eq!(Minimax.partition(&costs, parts), Ok(expected));
    }

    #[test]
    fn scaling_by_a_power_of_two_changes_nothing(
        (costs, parts) in request(small_whole()),
        exponent in -1070..900i32,
    ) {
        // In two factors, because each alone has to be a normal number.
        let (some, rest) = (2f64.powi(exponent / 2), 2f64.powi(exponent - exponent / 2));
        let scaled: Vec<_> = costs.as_slice().iter().map(|cost| cost * some * rest).collect();
        let scaled = Costs::new(scaled).expect("valid costs");
        prop_assert_eq!(Minimax.partition(&scaled, parts), Minimax.partition(&costs, parts));
    }

    #[test]
    fn any_costs_give_the_best_bottleneck((costs, parts) in request(any_cost())) {
        let (expected, _) = best(&costs, parts, |_| ());
        let partition = Minimax.partition(&costs, parts).expect("can be cut");
        prop_assert_eq!(partition.check(costs.len(), parts), Ok(()));
        prop_assert_eq!(partition.bottleneck(&costs), Ok(expected));
    }

    #[test]
    fn fractions_are_as_even_as_rounding_tells((costs, parts) in request(0.0..1.0f64)) {
        let squares = |partition: &Partition| -> f64 {
            let costs = partition.costs(&costs).expect("as many layers");
            costs.iter().map(|cost| cost * cost).sum()
        };
        let partition = Minimax.partition(&costs, parts).expect("can be cut");
        let bottleneck = partition.bottleneck(&costs).expect("as many layers");
        for sizes in all_sizes(costs.len(), parts) {
            let other = Partition::from_sizes(sizes).expect("no size is 0");
            if other.bottleneck(&costs) == Ok(bottleneck) {
                prop_assert!(squares(&partition) <= squares(&other) * (1.0 + 1e-12));
            }
        }
    }
}

/// Random-looking whole numbers below `limit`, always the same.
fn scattered(limit: u64) -> impl Iterator<Item = f64> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        ((state >> 33) % limit) as f64
    })
}

#[test]
fn ten_thousand_layers_can_be_cut_in_a_thousand_parts() {
    let (layers, parts) = (10_000, 1_000);
    let one_giant = |place: usize| {
        let mut costs: Vec<_> = scattered(100).take(layers).collect();
        // More than all others: under this bottleneck every cut is open.
        costs[place] = 1e6;
        costs
    };
    for (bottleneck, costs) in [
        (Some(10.0), vec![1.0; layers]),
        (Some(0.0), vec![0.0; layers]),
        (None, scattered(1000).take(layers).collect()),
        (Some(1e6), one_giant(0)),
        (Some(1e6), one_giant(layers / 2)),
        (Some(1e6), one_giant(layers - 1)),
    ] {
        let costs = Costs::new(costs).expect("valid costs");
        let partition = Minimax.partition(&costs, parts).expect("can be cut");
        assert_eq!(partition.check(layers, parts), Ok(()));
        let found = partition.bottleneck(&costs).expect("as many layers");
        assert_eq!(found, bottleneck.unwrap_or(found));
        // Never below the average, and never above it by more than a layer.
        let average = costs.total() / parts as f64;
        let most = costs.as_slice().iter().copied().fold(0.0, f64::max);
        assert!((average..=average + most).contains(&found), "{found}");
    }
}
