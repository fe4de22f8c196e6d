//! Tests as an author of a schedule would write them: it plans every shape, with the memory that it
//! promises.

use my_schedule::Rounds;
use proptest::prelude::*;
use stovepipe_schedule::{Edges, Program, Retention, Schedule, Shape};

proptest! {
    #[test]
    fn keeps_no_more_micro_batches_than_there_are_ranks(ranks in 1usize..6, m in 1usize..20) {
        let plan = Rounds.plan(Shape::new(ranks, m)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(ranks), &Retention::keep_all(&plan));
        let program = program.expect("a program");
        for rank in 0..ranks {
            prop_assert_eq!(program.peak_activations(rank), ranks.min(m));
        }
    }
}
