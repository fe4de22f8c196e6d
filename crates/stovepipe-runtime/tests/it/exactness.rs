//! Any plan computes what one stage computes.

use std::sync::Arc;

use proptest::prelude::*;
use stovepipe_runtime::Workers;
use stovepipe_schedule::{
    Compute, Drain, Edges, ForwardOnly, GPipe, MicroBatch, Mode, NamedSchedule, OneFOneB, Plan,
    Program, Retention, Schedule, Shape, Stage, StageRetention, schedules,
};

use crate::toy::{Toy, batch, loss, pipeline, pipeline_of, program, weights};

const LAYERS: [f64; 4] = [2.0, -3.0, 1.0, 2.0];

/// Layers cut into `stages` stages of nearly equal size.
fn cut(stages: usize) -> Vec<Vec<f64>> {
    let ends = (1..=stages).map(|s| s * LAYERS.len() / stages);
    let mut start = 0;
    ends.map(|end| LAYERS[std::mem::replace(&mut start, end)..end].to_vec()).collect()
}

/// Loss and weights after two steps, on stages that split their backwards if the plan does.
fn train(plan: &Plan, retention: &Retention) -> (Vec<f64>, Vec<f64>) {
    let (edges, weights) = (Edges::chain(plan.stages()), cut(plan.stages()));
    if plan.splits_backward() {
        train_on(pipeline_of::<true>(plan, &edges, &weights), plan, retention)
    } else {
        train_on(pipeline(plan, &edges, &weights), plan, retention)
    }
}

fn train_on<const SPLITS: bool>(
    mut workers: Workers<Toy<SPLITS>>,
    plan: &Plan,
    retention: &Retention,
) -> (Vec<f64>, Vec<f64>) {
    let program = program(plan, retention);
    let samples: Vec<f64> = (0..plan.micro_batches()).map(|m| m as f64 - 2.0).collect();
    let losses = (0..2).map(|_| {
        let report = workers.step(&program, batch(&samples)).expect("runs");
        loss(&report.reports)
    });
    let losses = losses.collect();
    (losses, weights(&mut workers, plan.stages()).concat())
}

#[test]
fn stages_schedules_and_retention_change_nothing() {
    for micro_batches in [1, 2, 4, 7] {
        let unsplit = OneFOneB.plan(Shape::new(1, micro_batches)).expect("a plan");
        let expected = train(&unsplit, &Retention::keep_all(&unsplit));
        for stages in 1..=4 {
            for schedule in
                [&GPipe::default() as &dyn Schedule, &GPipe::new(Drain::Forward), &OneFOneB]
            {
                let plan = schedule.plan(Shape::new(stages, micro_batches)).expect("a plan");
                let drop = Retention::from_fn(&plan, |_, _| StageRetention::drop_all(1));
                for retention in [Retention::keep_all(&plan), drop] {
                    assert_eq!(train(&plan, &retention), expected, "{stages} stages\n{plan}");
                }
            }
        }
    }
}

#[test]
fn every_schedule_runs() {
    for schedule in schedules().iter().map(NamedSchedule::make) {
        for (ranks, micro_batches) in [(1, 3), (2, 1), (2, 4), (2, 7)] {
            let shape = Shape::new(ranks, micro_batches)
                .with_stages_per_rank(schedule.default_stages_per_rank());
            let Ok(plan) = schedule.plan(shape) else { continue };
            if plan.mode() == Mode::ForwardOnly {
                continue;
            }
            let unsplit = OneFOneB.plan(Shape::new(1, micro_batches)).expect("a plan");
            let expected = train(&unsplit, &Retention::keep_all(&unsplit));
            let drop = Retention::from_fn(&plan, |_, _| StageRetention::drop_all(1));
            for retention in [Retention::keep_all(&plan), drop] {
                assert_eq!(train(&plan, &retention), expected, "{}\n{plan}", schedule.name());
            }
        }
    }
}

#[test]
fn the_program_decides_what_is_kept_and_recomputed() {
    let plan = OneFOneB.plan(Shape::new(3, 6)).expect("a plan");
    let retention = Retention::from_fn(&plan, |stage, m| {
        StageRetention::drop_all(usize::from(stage.index() == 1 && m.index() < 4))
    });
    let program = program(&plan, &retention);
    let mut workers = pipeline(&plan, &Edges::chain(3), &vec![vec![1.0]; 3]);
    let report = workers.step(&program, batch(&[1.0; 6])).expect("runs");
    assert_eq!(report.outputs, [0, 4, 0]);
    // 1F1B: rank r keeps P - r micro-batches.
    let peak = |stage| workers.visit(Stage::new(stage), |toy| toy.peak).expect("there");
    assert_eq!([0, 2].map(peak), [3, 1]);
}

#[test]
fn plans_may_place_their_recomputation() {
    // Long before the gradient can arrive, right before the backward, and not at all.
    let rows = ["0F0 0F1 0R1 0R0 0B0 0B1", "1F0 1R0 1B0 1F1 1B1"];
    let plan = Plan::parse(rows.map(str::split_whitespace)).expect("valid");
    let unsplit = OneFOneB.plan(Shape::new(1, 2)).expect("a plan");
    let expected = train(&unsplit, &Retention::keep_all(&unsplit));
    let placed = Retention::keep_all(&plan).with_recomputed(&plan, &[2, 2]);
    assert_eq!(train(&plan, &placed), expected);
    let mut workers = pipeline(&plan, &Edges::chain(2), &cut(2));
    let report = workers.step(&program(&plan, &placed), batch(&[1.0, 2.0])).expect("runs");
    assert_eq!(report.outputs, [2, 1]);
}

#[test]
fn several_stages_on_a_rank_compute_the_same() {
    // Interleaved by hand: stages 0 and 2 on rank 0, 1 and 3 on rank 1.
    let rows = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"];
    let plan = Plan::parse(rows.map(str::split_whitespace)).expect("valid");
    let unsplit = OneFOneB.plan(Shape::new(1, 2)).expect("a plan");
    assert_eq!(
        train(&plan, &Retention::keep_all(&plan)),
        train(&unsplit, &Retention::keep_all(&unsplit))
    );
    // All stages on one rank need no message at all.
    let plan = Plan::parse([("0F0 1F0 1B0 0B0").split_whitespace()]).expect("valid");
    let program = program(&plan, &Retention::keep_all(&plan));
    assert!(program.row(0).iter().all(|action| action.compute().is_some()));
}

#[test]
fn skips_carry_values_and_gradients_directly() {
    let s = Stage::new;
    let edges = Edges::chain(3).with_skip(s(0), s(2)).expect("a skip");
    let plan = OneFOneB.plan(Shape::new(3, 2)).expect("a plan");
    let program = Program::lower(&plan, &edges, &Retention::keep_all(&plan)).expect("lowers");
    assert!(
        program.to_string().contains("0SEND_F1>2") && program.to_string().contains("0RECV_B1<2")
    );
    let mut workers = pipeline(&plan, &edges, &[vec![2.0], vec![3.0], vec![5.0]]);
    // y = 5 (3 (2 x) + 2 x) = 40 x at x = 1 and 2.
    let report = workers.step(&Arc::new(program), batch(&[1.0, 2.0])).expect("runs");
    assert_eq!(loss(&report.reports), 120.0);
    // dy/dw0 = 20 x, dy/dw1 = 10 x, dy/dw2 = 8 x, summed over x = 3.
    assert_eq!(weights(&mut workers, 3), [[2.0 - 60.0], [3.0 - 30.0], [5.0 - 24.0]]);
}

#[test]
fn stages_exchange_what_they_share() {
    // Stages 0 and 2 on two ranks, then on one.
    let apart = OneFOneB.plan(Shape::new(3, 2)).expect("a plan");
    let rows = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 1B0 1B1"];
    let together = Plan::parse(rows.map(str::split_whitespace)).expect("valid");
    for plan in [apart, together] {
        let program = program(&plan, &Retention::keep_all(&plan));
        let mut workers = pipeline(&plan, &Edges::chain(3), &[vec![2.0], vec![3.0], vec![2.0]]);
        for (stage, partner) in [(0, 2), (2, 0)] {
            let partner = Some(Stage::new(partner));
            workers.visit(Stage::new(stage), move |toy| toy.partner = partner).expect("there");
        }
        // y = w 3 w x: dy/dw = 6 w x = 12 x, summed over x = 1 and 2.
        workers.step(&program, batch(&[1.0, 2.0])).expect("runs");
        let shared = 2.0 - 36.0;
        assert_eq!(weights(&mut workers, 3), [[shared], [3.0 - 12.0], [shared]]);
    }
}

#[test]
fn training_and_evaluation_in_any_order() {
    let plan = OneFOneB.plan(Shape::new(2, 3)).expect("a plan");
    let evaluation = ForwardOnly::on_placement_of(&plan, 3).expect("a plan");
    let (train, evaluate) = (
        program(&plan, &Retention::keep_all(&plan)),
        program(&evaluation, &Retention::keep_all(&evaluation)),
    );
    let mut workers = pipeline(&plan, &Edges::chain(2), &[vec![2.0], vec![3.0]]);
    let samples = [1.0, 0.0, 2.0];
    let mut run = |program: &Arc<Program>| {
        loss(&workers.step(program, batch(&samples)).expect("runs").reports)
    };
    assert_eq!([&evaluate, &evaluate, &train].map(&mut run), [18.0; 3]);
    // One update: 2 - 3 · 3 and 3 - 2 · 3.
    assert_eq!([&evaluate, &train].map(&mut run), [63.0; 2]);
    assert_ne!(run(&evaluate), 63.0);
}

#[test]
fn the_timeline_shows_every_action_in_order() {
    let plan = GPipe::default().plan(Shape::new(2, 3)).expect("a plan");
    let program = program(&plan, &Retention::keep_all(&plan));
    let mut workers = pipeline(&plan, &Edges::chain(2), &[vec![1.0], vec![1.0]]);
    let timeline = workers.step(&program, batch(&[1.0; 3])).expect("runs").timeline;
    for rank in 0..2 {
        let actions: Vec<_> = timeline.spans(rank).iter().map(|span| span.action).collect();
        assert_eq!(actions, program.row(rank));
        let times: Vec<f64> = timeline.spans(rank).iter().flat_map(|s| [s.start, s.end]).collect();
        assert!(times.is_sorted(), "{times:?}");
        let update = timeline.update(rank).expect("updated");
        assert!(update.start >= times[times.len() - 1]);
    }
}

/// A legal plan with actions picked at random from those that are ready.
fn random_plan(ranks: usize, stages_per_rank: usize, micro_batches: usize, picks: &[u32]) -> Plan {
    let stages = ranks * stages_per_rank;
    let mut rows = vec![Vec::new(); ranks];
    let (mut forwards, mut backwards) =
        (vec![vec![false; micro_batches]; stages], vec![vec![false; micro_batches]; stages]);
    for pick in 0.. {
        let mut ready = Vec::new();
        for s in 0..stages {
            for m in 0..micro_batches {
                let (stage, mb) = (Stage::new(s), MicroBatch::new(m));
                if !forwards[s][m] && (s == 0 || forwards[s - 1][m]) {
                    ready.push(Compute::forward(stage, mb));
                }
                if forwards[s][m] && !backwards[s][m] && (s + 1 == stages || backwards[s + 1][m]) {
                    ready.push(Compute::backward(stage, mb));
                }
            }
        }
        if ready.is_empty() {
            break;
        }
        let action = ready[picks[pick % picks.len()] as usize % ready.len()];
        let done = if action == Compute::forward(action.stage, action.micro_batch) {
            &mut forwards
        } else {
            &mut backwards
        };
        done[action.stage.index()][action.micro_batch.index()] = true;
        rows[action.stage.index() % ranks].push(action);
    }
    Plan::new(rows).expect("legal by construction")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_legal_plan_runs_and_computes_the_same(
        ranks in 1usize..4, stages_per_rank in 1usize..3, micro_batches in 1usize..6,
        picks in prop::collection::vec(any::<u32>(), 7..40), drop in any::<bool>(),
    ) {
        prop_assume!(ranks * stages_per_rank <= LAYERS.len());
        let plan = random_plan(ranks, stages_per_rank, micro_batches, &picks);
        let unsplit = OneFOneB.plan(Shape::new(1, micro_batches)).expect("a plan");
        let retention = Retention::from_fn(&plan, |_, m| StageRetention::drop_all(usize::from(drop && m.index() % 2 == 0)));
        prop_assert_eq!(train(&plan, &retention), train(&unsplit, &Retention::keep_all(&unsplit)));
    }
}
