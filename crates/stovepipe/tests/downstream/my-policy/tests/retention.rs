//! Tests as an author of a policy would write them: what it keeps of a known plan, and what holds
//! for all.

use my_policy::SoonNeeded;
use proptest::prelude::*;
use stovepipe_checkpoint::{CheckpointPolicy, Layout};
use stovepipe_schedule::{
    Edges, GPipe, Interleaved1F1B, MicroBatch, OneFOneB, Plan, Program, Retention, Schedule, Shape,
    Stage, ZbV,
};

/// Decides what the policy keeps of a plan whose stages have two layers each.
fn retention(plan: &Plan, within: usize) -> Retention {
    let layers = vec![2; plan.stages()];
    let layout = Layout::new(plan, &layers).expect("as many stages as the plan has");
    SoonNeeded { within }.retention(layout).expect("a decision")
}

/// Of how many micro-batches each stage recomputes something.
fn recomputed(plan: &Plan, within: usize) -> Vec<usize> {
    let retention = retention(plan, within);
    let of = |stage| {
        let all = MicroBatch::first(plan.micro_batches());
        all.filter(|m| retention.of(stage, *m).recomputes()).count()
    };
    Stage::first(plan.stages()).map(of).collect()
}

#[test]
fn recomputes_what_would_wait_longest() {
    // rank 0 | 0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
    // rank 1 |  .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
    // rank 2 |  .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
    let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
    assert_eq!(recomputed(&plan, 0), [4, 4, 0]);
    assert_eq!(recomputed(&plan, 1), [4, 2, 0]);
    assert_eq!(recomputed(&plan, 2), [2, 0, 0]);
    assert_eq!(recomputed(&plan, 3), [0, 0, 0]);
}

proptest! {
    #[test]
    fn more_patience_never_recomputes_more(
        ranks in 1usize..5,
        m in 1usize..12,
        within in 0usize..8,
    ) {
        let schedules: [&dyn Schedule; 4] = [&GPipe::default(), &OneFOneB, &Interleaved1F1B, &ZbV];
        for schedule in schedules {
            let stages_per_rank = schedule.default_stages_per_rank();
            let shape = Shape::new(ranks, m).with_stages_per_rank(stages_per_rank);
            let plan = schedule.plan(shape).expect("a plan");
            let (less, more) = (recomputed(&plan, within), recomputed(&plan, within + 1));
            prop_assert!(less.iter().zip(&more).all(|(less, more)| less >= more));
            // And each can be lowered to a program that runs.
            let edges = Edges::chain(plan.stages());
            let program = Program::lower(&plan, &edges, &retention(&plan, within));
            prop_assert!(program.is_ok(), "{}", schedule.name());
        }
    }
}
