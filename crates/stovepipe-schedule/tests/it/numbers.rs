//! Makespans, bubbles and peaks with known values.

use proptest::prelude::*;
use stovepipe_schedule::{
    CostModel, Drain, Edges, ForwardOnly, GPipe, Link, OneFOneB, Plan, Program, Retention,
    Schedule, Shape, StageCost, StageRetention, Timeline, simulate,
};

fn program(plan: &Plan) -> Program {
    Program::lower(plan, &Edges::chain(plan.stages()), &Retention::keep_all(plan)).expect("lowers")
}

fn run(schedule: &dyn Schedule, ranks: usize, micro_batches: usize, costs: &CostModel) -> Timeline {
    let plan = schedule.plan(Shape::new(ranks, micro_batches)).expect("a plan");
    simulate(&program(&plan), costs).expect("simulates")
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

#[test]
fn a_balanced_flush_takes_the_known_time() {
    // K = 4, forward = backward = 1: total 2(m + 3), utilization m / (m + 3).
    for (m, percent) in [(1, 25.0), (4, 57.1), (16, 84.2)] {
        for schedule in [&GPipe::default() as &dyn Schedule, &GPipe::new(Drain::Forward), &OneFOneB]
        {
            let timeline = run(schedule, 4, m, &CostModel::uniform(4, 1.0, 1.0));
            assert_eq!(timeline.makespan(), 2.0 * (m as f64 + 3.0));
            let utilization = timeline.utilization().expect("takes time");
            assert!(close(utilization, m as f64 / (m as f64 + 3.0)));
            assert!((100.0 * utilization - percent).abs() < 0.05, "{utilization}");
        }
    }
}

#[test]
fn the_slowest_stage_sets_the_pace_of_a_flush() {
    let times = [1.0, 1.0, 2.0, 1.0];
    let costs = CostModel::new(times.map(|t| StageCost::new(t, t)));
    for m in [1, 2, 5, 16] {
        let forward = run(&ForwardOnly, 4, m, &costs);
        assert_eq!(forward.makespan(), 2.0 * m as f64 + 3.0);
        let timeline = run(&GPipe::default(), 4, m, &costs);
        assert_eq!(timeline.makespan(), 4.0 * m as f64 + 6.0);
    }
    let timeline = run(&GPipe::default(), 4, 16, &costs);
    assert_eq!(timeline.makespan(), 70.0);
    assert_eq!((0..4).map(|rank| timeline.busy(rank)).sum::<f64>(), 160.0);
    assert!((100.0 * timeline.utilization().expect("takes time") - 57.1).abs() < 0.05);
    let many = run(&GPipe::default(), 4, 2_000, &costs).utilization().expect("takes time");
    assert!((100.0 * many - 62.5).abs() < 0.05, "{many}");
}

#[test]
fn fixed_work_with_overhead_has_a_best_number_of_micro_batches() {
    // 32 units per stage and direction: 2(m + 3)(32/m + h).
    let total = |m: usize, h: f64| {
        let each = 32.0 / m as f64;
        run(&GPipe::default(), 4, m, &CostModel::uniform(4, each, each).with_overhead(h)).makespan()
    };
    for h in [0.0, 0.5, 2.0] {
        for m in [1, 2, 3, 4, 8, 16, 32, 64, 128] {
            let mf = m as f64;
            assert!(close(total(m, h), 64.0 + 192.0 / mf + 2.0 * h * mf + 6.0 * h), "m={m}, h={h}");
        }
    }
    assert!(close(total(16, 0.5), 95.0));
    assert!(close(total(128, 0.5), 196.5));
    let powers = (0..8).map(|p| 1usize << p);
    let best = powers.min_by(|a, b| total(*a, 0.5).total_cmp(&total(*b, 0.5)));
    assert_eq!(best, Some(16));
    assert!(total(2_000, 0.0) - 64.0 < 0.1);
}

#[test]
fn bubbles_are_those_of_the_table() {
    // Idle divided by total: (K - 1) / (M + K - 1).
    for (m, percent) in [(1, 75), (4, 43), (8, 27), (16, 16)] {
        let bubble = run(&GPipe::default(), 4, m, &CostModel::uniform(4, 1.0, 1.0)).bubble();
        let bubble = bubble.expect("takes time");
        assert!(close(bubble, 3.0 / (m as f64 + 3.0)));
        assert_eq!((100.0 * bubble).round() as i32, percent);
    }
}

#[test]
fn gpipe_and_1f1b_differ_in_their_peaks_only() {
    // F = 1, B = 2, M = 8: makespan 33, 9 idle on each rank; the peaks differ.
    for (schedule, peaks) in
        [(&GPipe::default() as &dyn Schedule, [8, 8, 8, 8]), (&OneFOneB, [4, 3, 2, 1])]
    {
        let plan = schedule.plan(Shape::new(4, 8)).expect("a plan");
        let program = program(&plan);
        let timeline = simulate(&program, &CostModel::uniform(4, 1.0, 2.0)).expect("simulates");
        assert_eq!(timeline.makespan(), 33.0);
        for (rank, peak) in peaks.into_iter().enumerate() {
            assert_eq!(timeline.idle(rank), 9.0);
            assert_eq!(program.peak_activations(rank), peak);
        }
    }
}

#[test]
fn zero_costs_have_no_bubble() {
    let timeline = run(&GPipe::default(), 2, 2, &CostModel::uniform(2, 0.0, 0.0));
    assert_eq!((timeline.makespan(), timeline.bubble(), timeline.utilization()), (0.0, None, None));
}

#[test]
fn messages_take_their_link_one_after_the_other() {
    let costs = CostModel::uniform(2, 1.0, 1.0);
    let link = |latency, transfer| costs.clone().with_link(Link { latency, transfer });
    // One micro-batch: the message is on the critical path in both directions.
    assert_eq!(run(&GPipe::default(), 2, 1, &link(0.5, 0.25)).makespan(), 4.0 + 2.0 * 0.75);
    // A link slower than the stages sets the pace: one forward message every 3 units.
    assert_eq!(run(&ForwardOnly, 2, 4, &link(0.0, 3.0)).makespan(), 1.0 + 4.0 * 3.0 + 1.0);
}

#[test]
fn recomputation_runs_while_the_gradient_is_on_its_way() {
    let plan = GPipe::default().plan(Shape::new(2, 1)).expect("a plan");
    let drop = Retention::from_fn(&plan, |stage, _| StageRetention::drop_all(1 - stage.index()));
    let program = Program::lower(&plan, &Edges::chain(2), &drop).expect("lowers");
    let row: Vec<_> = program.row(0).iter().map(ToString::to_string).collect();
    assert_eq!(row, ["0F0", "0SEND_F0", "0R0", "0RECV_B0", "0B0"]);
    // Rank 0 recomputes while rank 1 computes: no time is lost.
    let timeline = simulate(&program, &CostModel::uniform(2, 1.0, 2.0)).expect("simulates");
    assert_eq!(timeline.makespan(), 6.0);
}

#[test]
fn the_update_follows_the_flush() {
    let costs =
        CostModel::new([1.0, 3.0].map(|update| StageCost { update, ..StageCost::new(1.0, 1.0) }));
    let timeline = run(&GPipe::default(), 2, 2, &costs);
    assert_eq!(timeline.makespan(), 6.0 + 3.0);
    assert_eq!(timeline.update(0), Some(6.0..7.0));
    assert_eq!(run(&ForwardOnly, 2, 2, &costs).update(0), None);
}

#[test]
fn unusable_costs_are_refused() {
    let plan = GPipe::default().plan(Shape::new(2, 2)).expect("a plan");
    let program = program(&plan);
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(simulate(&program, &CostModel::uniform(2, bad, 1.0)).is_err());
        assert!(simulate(&program, &CostModel::uniform(2, 1.0, 1.0).with_overhead(bad)).is_err());
    }
    assert!(simulate(&program, &CostModel::uniform(3, 1.0, 1.0)).is_err());
    let error = simulate(&program, &CostModel::uniform(2, f64::MAX, 1.0)).expect_err("overflows");
    assert!(error.to_string().contains("add up"), "{error}");
}

proptest! {
    #[test]
    fn uniform_flush_formulas(ranks in 1usize..8, m in 1usize..24, f in 1u32..9, b in 1u32..9) {
        let (ff, bf) = (f64::from(f), f64::from(b));
        for schedule in [&GPipe::default() as &dyn Schedule, &GPipe::new(Drain::Forward)] {
            let timeline = run(schedule, ranks, m, &CostModel::uniform(ranks, ff, bf));
            prop_assert_eq!(timeline.makespan(), (m + ranks - 1) as f64 * (ff + bf));
        }
        let plan = OneFOneB.plan(Shape::new(ranks, m)).expect("a plan");
        let program = program(&plan);
        let timeline = simulate(&program, &CostModel::uniform(ranks, ff, bf)).expect("simulates");
        for rank in 0..ranks {
            prop_assert_eq!(program.peak_activations(rank), (ranks - rank).min(m));
        }
        if m >= ranks {
            prop_assert_eq!(timeline.makespan(), (m + ranks - 1) as f64 * (ff + bf));
        }
    }

    #[test]
    fn every_program_runs_with_one_message_in_flight_or_says_why(
        ranks in 1usize..7, m in 1usize..12, which in 0usize..4,
    ) {
        let schedules: [&dyn Schedule; 4] =
            [&GPipe { drain: Drain::Reverse }, &GPipe { drain: Drain::Forward }, &OneFOneB, &ForwardOnly];
        let plan = schedules[which].plan(Shape::new(ranks, m)).expect("a plan");
        let program = program(&plan);
        prop_assert!(program.check_in_flight(1).is_ok());
        // What is lowered reads back as the same program.
        let text = program.to_string();
        let rows = text.lines().map(|l| l.split_once('|').map_or("", |(_, r)| r).split_whitespace());
        let again = Program::parse(rows, |stages| Ok(Edges::chain(stages)), None);
        prop_assert_eq!(again.expect("reads back").to_string(), text);
    }
}
