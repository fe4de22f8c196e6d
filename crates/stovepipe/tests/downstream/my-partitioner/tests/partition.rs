//! Tests as an author of a partitioner would write them: every request is met exactly or refused.

use my_partitioner::Lopsided;
use stovepipe_partition::{Costs, PartitionError, Partitioner};

#[test]
fn cuts_into_as_many_parts_as_asked() {
    for layers in 1..8 {
        let costs = Costs::uniform(layers).expect("costs");
        for parts in 1..=layers {
            let partition = Lopsided.partition(&costs, parts).expect("a partition");
            assert_eq!(partition.check(layers, parts), Ok(()));
            assert_eq!(partition.sizes()[parts - 1], layers + 1 - parts);
        }
    }
}

#[test]
fn refuses_what_nobody_could_do() {
    let costs = Costs::uniform(3).expect("costs");
    for parts in [0, 4] {
        let refused = Lopsided.partition(&costs, parts);
        assert!(matches!(
            refused,
            Err(PartitionError::NoParts | PartitionError::TooManyParts { .. })
        ));
    }
}
