//! Every schedule over many shapes: what it takes and refuses, and the makespans, idle times and
//! peaks that its documentation states.

use proptest::prelude::*;
use stovepipe_schedule::{
    ComputeKind, CostModel, Drain, DualPipeV, Edges, GPipe, Interleaved1F1B, LoopedBfs,
    NamedSchedule, OneFOneB, Plan, PlanError, Program, Retention, Schedule, Shape, StageCost, ZbH1,
    ZbV, schedules, simulate,
};

fn lower(plan: &Plan) -> Program {
    Program::lower(plan, &Edges::chain(plan.stages()), &Retention::keep_all(plan)).expect("lowers")
}

/// Makespan, and for each rank idle time and peak.
fn figures(schedule: &dyn Schedule, shape: Shape, cost: StageCost) -> (f64, Vec<f64>, Vec<usize>) {
    let program = lower(&schedule.plan(shape).expect("a plan"));
    let costs = CostModel::new(vec![cost; shape.stages()]);
    let timeline = simulate(&program, &costs).expect("simulates");
    let ranks = 0..shape.ranks;
    (
        timeline.makespan(),
        ranks.clone().map(|rank| timeline.idle(rank)).collect(),
        ranks.map(|rank| program.peak_activations(rank)).collect(),
    )
}

/// Forward `f`, input gradient `i`, weight gradient `w`.
fn cost(f: f64, i: f64, w: f64) -> StageCost {
    StageCost { weight_grad: w, ..StageCost::new(f, i + w) }
}

#[test]
fn four_ranks_eight_micro_batches() {
    // A whole rank takes F = 1, I = W = 1; two stages per rank take half each.
    let (whole, half) = (cost(1.0, 1.0, 1.0), cost(0.5, 0.5, 0.5));
    let one = Shape::new(4, 8);
    let two = one.with_stages_per_rank(2);
    type Row<'a> = (&'a dyn Schedule, Shape, StageCost, f64, f64, [usize; 4]);
    let rows: [Row<'_>; 6] = [
        (&GPipe::default(), one, whole, 33.0, 9.0, [8, 8, 8, 8]),
        (&OneFOneB, one, whole, 33.0, 9.0, [4, 3, 2, 1]),
        (&Interleaved1F1B, two, half, 28.5, 4.5, [11, 9, 7, 5]),
        (&LoopedBfs::default(), two, half, 28.5, 4.5, [16, 16, 16, 16]),
        (&ZbH1, one, whole, 27.0, 3.0, [4, 4, 4, 4]),
        (&ZbV, two, half, 25.5, 1.5, [8, 8, 8, 8]),
    ];
    for (schedule, shape, cost, makespan, idle, peaks) in rows {
        let found = figures(schedule, shape, cost);
        assert_eq!(found, (makespan, vec![idle; 4], peaks.to_vec()), "{}", schedule.name());
    }
    let found = figures(&DualPipeV, Shape::new(4, 10).with_stages_per_rank(2), cost(1.0, 1.0, 1.0));
    assert_eq!(found, (63.0, vec![3.0; 4], vec![9; 4]));
}

#[test]
fn where_the_formulas_end() {
    let half = cost(0.5, 0.5, 0.5);
    let interleaved = |m| figures(&Interleaved1F1B, Shape::new(4, m).with_stages_per_rank(2), half);
    assert_eq!(interleaved(6).2[0], 12);
    assert_eq!(interleaved(3).1, [6.0; 4]);
    assert_eq!(figures(&ZbH1, Shape::new(4, 3), cost(1.0, 1.0, 1.0)).1, [4.0; 4]);
    let zb_v = |m| figures(&ZbV, Shape::new(3, m).with_stages_per_rank(2), cost(1.0, 1.0, 1.0));
    assert_eq!(zb_v(1).1, [8.0; 3]);
    assert_eq!(zb_v(3), (22.0, vec![4.0; 3], vec![4, 5, 6]));
}

/// Whether the documentation says that the schedule takes the shape.
fn takes(name: &str, shape: Shape) -> bool {
    match name {
        "gpipe" | "gpipe-forward" | "1f1b" | "zb-h1" => shape.stages_per_rank == 1,
        "zb-v" => shape.stages_per_rank == 2,
        "dualpipe-v" => shape.stages_per_rank == 2 && shape.micro_batches >= 2 * shape.ranks,
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_shape_is_planned_or_refused_as_documented(
        ranks in 1usize..=8, stages_per_rank in 1usize..=4, m in 1usize..=32,
        f in 1u32..6, i in 1u32..6, w in 1u32..6,
    ) {
        let shape = Shape::new(ranks, m).with_stages_per_rank(stages_per_rank);
        let (f, i, w) = (f64::from(f), f64::from(i), f64::from(w));
        for schedule in schedules().iter().map(NamedSchedule::make) {
            let name = schedule.name();
            let plan = match schedule.plan(shape) {
                Ok(plan) => plan,
                Err(error) => {
                    prop_assert!(!takes(name, shape), "{error}");
                    let typed = matches!(error, PlanError::Unsupported { .. });
                    prop_assert!(typed, "{error}");
                    continue;
                }
            };
            prop_assert!(takes(name, shape), "{name} took {shape}");
            prop_assert_eq!(
                (plan.ranks(), plan.stages(), plan.micro_batches()), (ranks, shape.stages(), m)
            );
            let program = lower(&plan);
            // One message on its way at a time is enough, except where two ranks exchange several
            // stages' values.
            if stages_per_rank == 1 {
                prop_assert!(program.check_in_flight(1).is_ok(), "{name}");
            }
            let costs = CostModel::new(vec![cost(f, i, w); shape.stages()]);
            let timeline = simulate(&program, &costs).expect("simulates");
            let (p, pf, b) = (ranks, (ranks - 1) as f64, i + w);
            let idle: Vec<f64> = (0..p).map(|rank| timeline.idle(rank)).collect();
            let peaks: Vec<usize> = (0..p).map(|rank| program.peak_activations(rank)).collect();
            let all = |value: f64| vec![value; p];
            match name {
                "gpipe" | "gpipe-forward" => {
                    prop_assert_eq!(idle, all(pf * (f + b)));
                    prop_assert_eq!(peaks, vec![m; p]);
                }
                "1f1b" => {
                    if m >= p {
                        prop_assert_eq!(idle, all(pf * (f + b)));
                    }
                    prop_assert_eq!(peaks, (0..p).map(|r| (p - r).min(m)).collect::<Vec<_>>());
                }
                "interleaved-1f1b" => {
                    if m % p == 0 {
                        prop_assert_eq!(idle, all(pf * (f + b)));
                        let ahead = |r: usize| {
                            if stages_per_rank == 1 { p - r } else { stages_per_rank * p + p - 1 - 2 * r }
                        };
                        let expected: Vec<usize> =
                            (0..p).map(|r| ahead(r).min(stages_per_rank * m)).collect();
                        prop_assert_eq!(peaks, expected);
                    }
                }
                "looped-bfs" | "looped-bfs-forward" => {
                    if m >= p {
                        prop_assert_eq!(idle, all(pf * (f + b)));
                    }
                    prop_assert_eq!(peaks, vec![stages_per_rank * m; p]);
                }
                "zb-h1" => {
                    if m >= p && w <= f && w <= i {
                        prop_assert_eq!(idle, all(pf * (f + i - w)));
                    }
                    prop_assert_eq!(peaks, vec![p.min(m); p]);
                }
                "zb-v" => {
                    if m >= 2 * p - 1 {
                        prop_assert_eq!(peaks, vec![2 * p; p]);
                        if f == i && i == w {
                            prop_assert_eq!(idle, all(pf * f));
                        }
                    }
                }
                "dualpipe-v" => {
                    prop_assert_eq!(peaks, vec![2 * p + 1; p]);
                    if f == i && i == w {
                        prop_assert_eq!(idle, all(pf * f));
                    }
                }
                "forward-only" => {
                    if stages_per_rank == 1 || m % p == 0 {
                        prop_assert_eq!(idle, all(pf * f));
                    }
                    prop_assert_eq!(peaks, vec![0; p]);
                }
                _ => prop_assert!(false, "no formula for {name}"),
            }
        }
    }

    #[test]
    fn another_order_of_the_same_work_runs_or_is_refused(
        which in 0usize..10, ranks in 1usize..=4, m in 1usize..=10,
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
    ) {
        let schedule = &schedules()[which].make();
        let shape = Shape::new(ranks, m).with_stages_per_rank(schedule.default_stages_per_rank());
        prop_assume!(takes(schedule.name(), shape));
        let mut rows = schedule.plan(shape).expect("a plan").rows().to_vec();
        for (rank, place) in swaps {
            let row = rank.index(rows.len());
            if rows[row].len() > 1 {
                let place = place.index(rows[row].len() - 1);
                // Legal as far as one rank can tell: not within one stage and micro-batch.
                let (a, b) = (rows[row][place], rows[row][place + 1]);
                if (a.stage, a.micro_batch) != (b.stage, b.micro_batch) {
                    rows[row].swap(place, place + 1);
                }
            }
        }
        if let Ok(plan) = Plan::new(rows) {
            let program = lower(&plan);
            let costs = CostModel::uniform(plan.stages(), 1.0, 2.0);
            let timeline = simulate(&program, &costs).expect("simulates");
            for rank in 0..plan.ranks() {
                prop_assert_eq!(timeline.spans(rank).len(), program.row(rank).len());
            }
            // Whatever the order, the critical path has no gap.
            let path: f64 = timeline.critical_path().iter().map(|(_, span)| span.duration()).sum();
            prop_assert_eq!(path, timeline.makespan());
        }
    }
}

#[test]
fn split_backwards_are_only_where_they_are_said_to_be() {
    for schedule in schedules().iter().map(NamedSchedule::make) {
        let shape = Shape::new(2, 4).with_stages_per_rank(schedule.default_stages_per_rank());
        let plan = schedule.plan(shape).expect("a plan");
        let splits = matches!(schedule.name(), "zb-h1" | "zb-v" | "dualpipe-v");
        assert_eq!(plan.splits_backward(), splits, "{}", schedule.name());
    }
}

#[test]
fn impossible_shapes_are_refused_at_once() {
    for schedule in schedules().iter().map(NamedSchedule::make) {
        let stages_per_rank = schedule.default_stages_per_rank();
        let shapes = [
            Shape::new(0, 4),
            Shape::new(4, 0),
            Shape::new(4, 4).with_stages_per_rank(0),
            Shape::new(100_000, 100_000),
            Shape::new(usize::MAX, usize::MAX),
            Shape::new(10_000_000, 1_000_000),
        ];
        for shape in shapes {
            let shape = if shape.stages_per_rank == 1 {
                shape.with_stages_per_rank(stages_per_rank)
            } else {
                shape
            };
            assert!(schedule.plan(shape).is_err(), "{} took {shape}", schedule.name());
        }
    }
    // So few micro-batches on so many ranks would take hours to write.
    assert!(ZbV.plan(Shape::new(1_000_000, 1).with_stages_per_rank(2)).is_err());
}

#[test]
fn drains_order_the_backwards() {
    for (drain, first) in [(Drain::Reverse, 2), (Drain::Forward, 0)] {
        let plan =
            LoopedBfs::new(drain).plan(Shape::new(2, 3).with_stages_per_rank(2)).expect("a plan");
        let backward = plan.row(1).iter().find(|a| a.kind == ComputeKind::Backward);
        assert_eq!(backward.map(|a| a.micro_batch.index()), Some(first));
    }
}
