//! A stage that fails ends the step with an error that says where, changes nothing, and leaves a
//! pipeline that still works.

use std::sync::Arc;

use stovepipe_runtime::{Cause, PlainThread, RankSetup, StepError, StepPhase, Workers};
use stovepipe_schedule::{
    Drain, Edges, GPipe, OneFOneB, Plan, Program, Retention, Schedule, Shape, Stage, StageRetention,
};

use crate::toy::{
    Batch, Fault, How, Toy, batch, loss, pipeline, program, silence_worker_panics, weights,
};

const STAGES: usize = 3;
const SAMPLES: [f64; 4] = [1.0, 2.0, -1.0, 3.0];

fn setup(schedule: &dyn Schedule) -> (Arc<Program>, Workers<Toy>) {
    let plan = schedule.plan(Shape::new(STAGES, SAMPLES.len())).expect("a plan");
    let drop = Retention::from_fn(&plan, |_, _| StageRetention::drop_all(1));
    let workers = pipeline(&plan, &Edges::chain(STAGES), &vec![vec![2.0]; STAGES]);
    (program(&plan, &drop), workers)
}

fn failing(fault: Fault) -> Arc<Batch> {
    Arc::new(Batch { samples: SAMPLES.to_vec(), fault: Some(fault) })
}

#[test]
fn a_failure_anywhere_is_located_and_changes_nothing() {
    silence_worker_panics();
    let whole = [StepPhase::Begin, StepPhase::Share, StepPhase::Finish, StepPhase::Prepare];
    let whole = whole.map(|phase| (phase, None));
    let each = [StepPhase::Forward, StepPhase::Recompute, StepPhase::Backward]
        .into_iter()
        .flat_map(|phase| (0..SAMPLES.len()).map(move |m| (phase, Some(m))));
    let places: Vec<_> = whole.into_iter().chain(each).collect();
    for schedule in [&GPipe::default() as &dyn Schedule, &GPipe::new(Drain::Forward), &OneFOneB] {
        let (program, mut workers) = setup(schedule);
        let before = weights(&mut workers, STAGES);
        for stage in 0..STAGES {
            for &(phase, micro_batch) in &places {
                for how in [How::Error, How::Panic] {
                    let fault = Fault { stage, phase, micro_batch, how };
                    let error = workers.step(&program, failing(fault)).expect_err("fails");
                    let StepError::Stage { rank, stage: at, micro_batch: m, phase: p, ref cause } =
                        error
                    else {
                        panic!("{fault:?}: {error}");
                    };
                    assert_eq!(
                        (rank.index(), at.index(), m.map(|m| m.index()), p),
                        (stage, stage, micro_batch, phase)
                    );
                    match (how, cause) {
                        (How::Error, Cause::Error(_)) => {
                            assert!(error.to_string().contains("the device is on fire"))
                        }
                        (How::Panic, Cause::Panic(_)) => {
                            assert!(error.to_string().contains("the stage fell over"))
                        }
                        _ => panic!("{fault:?}: {error}"),
                    }
                    assert!(
                        error.to_string().contains(&format!("rank {stage}, stage {stage}, ")),
                        "{error}"
                    );
                    assert_eq!(weights(&mut workers, STAGES), before, "{fault:?}");
                }
            }
        }
        // After all that the pipeline trains as if nothing had happened.
        let report = workers.step(&program, batch(&SAMPLES)).expect("runs");
        assert_eq!(loss(&report.reports), 8.0 * 5.0);
        assert_eq!(weights(&mut workers, STAGES), vec![vec![2.0 - 4.0 * 5.0]; STAGES]);
    }
}

#[test]
fn a_failure_inside_the_update_makes_the_pipeline_refuse() {
    for stage in 0..STAGES {
        let (program, mut workers) = setup(&OneFOneB);
        let fault = Fault { stage, phase: StepPhase::Update, micro_batch: None, how: How::Error };
        let error = workers.step(&program, failing(fault)).expect_err("fails");
        assert!(error.poisons());
        assert!(
            error.to_string().contains(&format!("stage {stage}, update: the device is on fire")),
            "{error}"
        );
        let error = workers.step(&program, batch(&SAMPLES)).expect_err("refuses");
        assert!(matches!(error, StepError::Unusable { .. }), "{error}");
        assert!(error.to_string().contains("build the pipeline again"), "{error}");
    }
}

#[test]
fn programs_that_do_not_fit_are_refused_before_anything_runs() {
    let (_, mut workers) = setup(&OneFOneB);
    let mut refused = |rows: &[&str], advice: &str| {
        let plan = Plan::parse(rows.iter().map(|row| row.split_whitespace())).expect("valid");
        let program = program(&plan, &Retention::keep_all(&plan));
        let error = workers.step(&program, batch(&[1.0])).expect_err("refuses");
        assert!(error.to_string().contains(advice), "{error}");
    };
    refused(&["0F0 0B0", "1F0 1B0"], "has 2 ranks, the pipeline 3");
    refused(&["0F0 0B0", "2F0 2B0", "1F0 1B0"], "expects stages");
    refused(&["0F0 0I0 0W0", "1F0 1B0", "2F0 2B0"], "splits backwards");
    assert_eq!(weights(&mut workers, STAGES), vec![vec![2.0]; STAGES]);
}

#[test]
fn a_stage_that_returns_too_few_values_is_named() {
    let plan = OneFOneB.plan(Shape::new(2, 1)).expect("a plan");
    let program = program(&plan, &Retention::keep_all(&plan));
    // This stage 0 believes that it is alone, and sends nothing on.
    let stages = [Edges::chain(1), Edges::chain(2)];
    let ranks = stages.iter().enumerate().map(|(s, edges)| {
        let stages = vec![(Stage::new(s), Toy::<false>::new(s, edges, vec![1.0]))];
        RankSetup::new(stages, Box::new(PlainThread))
    });
    let mut workers = Workers::start(ranks.collect()).expect("threads");
    let error = workers.step(&program, batch(&[1.0])).expect_err("fails");
    assert!(error.to_string().contains("returned 0 values, but 1 edges"), "{error}");
}

#[test]
fn visitors_that_panic_or_miss_are_errors() {
    silence_worker_panics();
    let (program, mut workers) = setup(&OneFOneB);
    assert!(workers.visit(Stage::new(9), |_| ()).is_err());
    let error = workers.visit(Stage::new(1), |_| -> () { panic!("in a visitor") });
    assert!(error.expect_err("panics").to_string().contains("panicked"));
    assert!(workers.step(&program, batch(&SAMPLES)).is_ok());
}
