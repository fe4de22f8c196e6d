//! The hook through which values pass when they arrive.

use std::sync::{Arc, Mutex};

use stovepipe_runtime::{Cause, StepError, StepPhase, Workers};
use stovepipe_schedule::{
    Action, Direction, Edges, OneFOneB, Plan, Retention, Schedule, Shape, Stage,
};

use crate::toy::{Toy, batch, loss, pipeline, program, setups, silence_worker_panics, weights};

/// Two stages on each of two ranks: values arrive ahead of their turn and in it, and some stay on
/// their rank.
fn plan() -> Plan {
    let rows = ["0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1", "2F0 3F0 3B0 2B0 2F1 3F1 3B1 2B1"];
    Plan::parse(rows.map(str::split_whitespace)).expect("valid")
}

const WEIGHTS: [f64; 4] = [2.0, 3.0, 1.0, 5.0];

fn stage_weights() -> Vec<Vec<f64>> {
    WEIGHTS.map(|weight| vec![weight]).to_vec()
}

/// Which thread received which value.
type Arrivals = Arc<Mutex<Vec<(String, f64)>>>;

fn note(arrivals: &Arrivals, value: f64) -> f64 {
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    arrivals.lock().expect("the lock").push((thread, value));
    value
}

#[test]
fn every_value_from_another_rank_passes_once_on_the_thread_of_its_rank() {
    let plan = plan();
    let (edges, program) = (Edges::chain(4), program(&plan, &Retention::keep_all(&plan)));
    let mut expected = pipeline(&plan, &edges, &stage_weights());
    let arrivals: [Arrivals; 2] = Default::default();
    let ranks = setups::<false>(&plan, &edges, &stage_weights()).into_iter().zip(&arrivals);
    let ranks = ranks.map(|(setup, arrivals)| {
        let arrivals = Arc::clone(arrivals);
        setup.with_arrival_hook(move |value| note(&arrivals, value))
    });
    let mut workers = Workers::start(ranks.collect()).expect("threads");
    let report = workers.step(&program, batch(&[1.0, -2.0])).expect("runs");
    let without = expected.step(&program, batch(&[1.0, -2.0])).expect("runs");
    assert_eq!(report.reports, without.reports);
    assert_eq!(weights(&mut workers, 4), weights(&mut expected, 4));

    // Activations of 6 x go up; gradients of 5 come down.
    for (rank, mut values) in [vec![5.0, 5.0], vec![6.0, -12.0]].into_iter().enumerate() {
        let mut arrived = arrivals[rank].lock().expect("the lock").clone();
        arrived.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        values.sort_by(f64::total_cmp);
        let thread = format!("stovepipe-{rank}");
        let values: Vec<_> = values.into_iter().map(|value| (thread.clone(), value)).collect();
        assert_eq!(arrived, values, "on rank {rank}");
        let receives = program.row(rank).iter().filter(|a| matches!(a, Action::Recv(_))).count();
        assert_eq!(values.len(), receives, "on rank {rank}");
    }
}

#[test]
fn stages_see_what_the_hook_returns() {
    let plan = OneFOneB.plan(Shape::new(2, 3)).expect("a plan");
    let edges = Edges::chain(2);
    let program = program(&plan, &Retention::keep_all(&plan));
    let mut ranks = setups::<false>(&plan, &edges, &[vec![2.0], vec![3.0]]);
    let last = ranks.pop().expect("two ranks").with_arrival_hook(|value| 10.0 * value);
    ranks.push(last);
    let mut workers: Workers<Toy> = Workers::start(ranks).expect("threads");
    let report = workers.step(&program, batch(&[1.0, 2.0, 3.0])).expect("runs");
    assert_eq!(loss(&report.reports), 6.0 * 10.0 * 6.0);
}

#[test]
fn a_hook_that_panics_fails_the_step_and_says_where() {
    silence_worker_panics();
    let plan = OneFOneB.plan(Shape::new(3, 4)).expect("a plan");
    let edges = Edges::chain(3);
    let program = program(&plan, &Retention::keep_all(&plan));
    let initial = vec![vec![2.0]; 3];
    let ranks = setups::<false>(&plan, &edges, &initial).into_iter().enumerate();
    // The activation of the third micro-batch, as it reaches the last rank.
    let ranks = ranks.map(|(rank, setup)| {
        setup.with_arrival_hook(move |value| {
            assert!(rank != 2 || value != 4.0 * 7.0, "no memory for it");
            value
        })
    });
    let mut workers = Workers::start(ranks.collect()).expect("threads");
    let error = workers.step(&program, batch(&[1.0, 2.0, 7.0, 3.0])).expect_err("fails");
    let StepError::Stage { rank, stage, micro_batch, phase, ref cause } = error else {
        panic!("not the failure of a stage: {error}");
    };
    let place = (rank.index(), stage.index(), micro_batch.map(|m| m.index()));
    assert_eq!((place, phase), ((2, 2, Some(2)), StepPhase::Arrival));
    assert!(matches!(cause, Cause::Panic(message) if message == "no memory for it"), "{cause}");
    assert!(error.to_string().contains("arrival of a value"), "{error}");
    assert_eq!(weights(&mut workers, 3), initial);
    // Another batch arrives as if nothing had happened.
    let report = workers.step(&program, batch(&[1.0, 2.0, -1.0, 3.0])).expect("runs");
    assert_eq!(loss(&report.reports), 8.0 * 5.0);
}

#[test]
fn values_over_a_skip_arrive_too() {
    let s = Stage::new;
    let edges = Edges::chain(3).with_skip(s(0), s(2)).expect("a skip");
    let plan = OneFOneB.plan(Shape::new(3, 2)).expect("a plan");
    let program = stovepipe_schedule::Program::lower(&plan, &edges, &Retention::keep_all(&plan));
    let program = Arc::new(program.expect("lowers"));
    let arrivals = Arrivals::default();
    let noted = Arc::clone(&arrivals);
    let mut ranks = setups::<false>(&plan, &edges, &[vec![2.0], vec![3.0], vec![5.0]]);
    let last = ranks.pop().expect("three ranks");
    ranks.push(last.with_arrival_hook(move |value| note(&noted, value)));
    let mut workers: Workers<Toy> = Workers::start(ranks).expect("threads");
    workers.step(&program, batch(&[1.0, 2.0])).expect("runs");
    let mut values: Vec<f64> =
        arrivals.lock().expect("the lock").iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    // 2 x straight from stage 0, 6 x from stage 1.
    assert_eq!(values, [2.0, 4.0, 6.0, 12.0]);
    let up = |a: &&Action| matches!(a, Action::Recv(m) if m.direction == Direction::Forward);
    assert_eq!(program.row(2).iter().filter(up).count(), 4);
}
