//! Known cases with their best answers, most of them ones that another library gets wrong.

use stovepipe_partition::{Costs, Explicit, Minimax, PartitionError, Partitioner, Uniform};

struct Case {
    costs: Vec<f64>,
    parts: usize,
    bottleneck: f64,
    sizes: &'static [usize],
}

fn case(
    costs: impl Into<Vec<f64>>,
    parts: usize,
    bottleneck: f64,
    sizes: &'static [usize],
) -> Case {
    Case { costs: costs.into(), parts, bottleneck, sizes }
}

#[test]
fn minimax_finds_the_best_bottleneck() {
    let cases = [
        // torchgpipe cuts [1, 1, 1, 4], whose bottleneck is 4.
        case([1.0; 7], 4, 2.0, &[1, 2, 2, 2]),
        // torchgpipe cuts [3, 0, 1], with an empty stage.
        case([13.0, 13.0, 19.0, 16.0], 3, 26.0, &[2, 1, 1]),
        // Lingvo cuts [0, 1, 1, 2], with an empty stage and a bottleneck of 2.
        case([1.0; 4], 4, 1.0, &[1, 1, 1, 1]),
        // DeepSpeed's bottleneck is 15.
        case([5.0, 2.0, 5.0, 5.0, 7.0, 12.0, 3.0], 4, 12.0, &[3, 2, 1, 1]),
        // DeepSpeed cuts [2, 2, 1, 0], with an empty stage.
        case([1.0; 5], 4, 2.0, &[1, 1, 1, 2]),
        case([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 11.0, &[4, 2]),
        // torchgpipe cut by accumulated instead of own sizes and did not get [2, 4].
        case([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 2, 11.0, &[2, 4]),
        // DeepSpeed leaves two stages empty.
        case([1.0; 42], 16, 3.0, &[2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]),
        // DeepSpeed gives the last stage 10.
        case([1.0; 38], 8, 5.0, &[4, 4, 5, 5, 5, 5, 5, 5]),
        // One part, one layer, nothing but zeros.
        case([1.0, 2.0, 3.0], 1, 6.0, &[3]),
        case([7.0], 1, 7.0, &[1]),
        case([0.0; 5], 3, 0.0, &[1, 1, 3]),
        // A single expensive layer: the others are still spread evenly.
        case([9.0, 1.0, 1.0, 1.0, 1.0], 3, 9.0, &[1, 2, 2]),
        // Two cuts with the same squares: the earlier one.
        case([1.0, 1.0, 1.0], 2, 2.0, &[1, 2]),
        case([2.0, 0.0, 0.0, 2.0], 2, 2.0, &[1, 3]),
        // Sums that aren't exact in binary.
        case([0.1; 9], 3, 0.1 + 0.1 + 0.1, &[3, 3, 3]),
        // Far apart: a running total would have lost the small ones.
        case([1e16, 1.0, 1.0, 1.0], 2, 1e16, &[1, 3]),
        case([f64::MAX, 5e-324, 5e-324], 3, f64::MAX, &[1, 1, 1]),
        case([5e-324; 4], 2, 1e-323, &[2, 2]),
    ];
    for case in cases {
        let costs = Costs::new(case.costs).expect("valid costs");
        let partition = Minimax.partition(&costs, case.parts).expect("can be cut");
        let message = format!("{:?} in {}", costs.as_slice(), case.parts);
        assert_eq!(partition.sizes(), case.sizes, "{message}");
        assert_eq!(partition.bottleneck(&costs), Ok(case.bottleneck), "{message}");
    }
}

#[test]
fn uniform_sizes_differ_by_one_at_most() {
    for (layers, parts, sizes) in [
        (7, 4, &[2, 2, 2, 1][..]),
        (6, 3, &[2, 2, 2]),
        (4, 4, &[1, 1, 1, 1]),
        (5, 4, &[2, 1, 1, 1]),
        (5, 1, &[5]),
    ] {
        let costs = Costs::uniform(layers).expect("valid costs");
        let partition = Uniform.partition(&costs, parts).expect("can be cut");
        assert_eq!(partition.sizes(), sizes, "{layers} in {parts}");
    }
}

#[test]
fn an_explicit_cut_is_taken_as_it_is_or_refused() {
    let explicit = Explicit::new("1,4".parse().expect("valid sizes"));
    let five = Costs::uniform(5).expect("valid costs");
    let six = Costs::uniform(6).expect("valid costs");
    assert_eq!(explicit.partition(&five, 2).expect("fits").to_string(), "[1, 4]");
    assert!(matches!(
        explicit.partition(&six, 2),
        Err(PartitionError::LayersMismatch { layers: 6, .. })
    ));
    assert!(matches!(
        explicit.partition(&five, 3),
        Err(PartitionError::PartsMismatch { parts: 3, .. })
    ));
}

#[test]
fn no_partitioner_makes_an_empty_part() {
    let costs = Costs::uniform(3).expect("valid costs");
    let partitioners: [&dyn Partitioner; 2] = [&Uniform, &Minimax];
    for partitioner in partitioners {
        let error = partitioner.partition(&costs, 5).expect_err("too many");
        assert_eq!(
            error.to_string(),
            "5 parts need at least 5 layers, the model has 3: use at most 3 stages"
        );
        assert_eq!(partitioner.partition(&costs, 0), Err(PartitionError::NoParts));
    }
}
