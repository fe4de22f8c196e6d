//! A rank whose thread doesn't do its part is an error that names the rank. Nothing waits for ever.

use std::convert::Infallible;
use std::sync::mpsc;
use std::time::Duration;

use stovepipe_runtime::{
    Begin, PlainThread, RankSetup, RankThread, StageCompute, StepError, Workers,
};
use stovepipe_schedule::{
    Edges, MicroBatch, OneFOneB, Retention, Schedule, Shape, Stage, StageRetention,
};

use crate::toy::{Toy, program, silence_worker_panics};

/// How a thread fails to run its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Drops,
    Leaks,
    Panics,
    TakesForEver,
}

struct Broken(How);

impl RankThread for Broken {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        match self.0 {
            How::Drops => drop(worker),
            How::Leaks => std::mem::forget(worker),
            How::Panics => panic!("the thread fell over"),
            How::TakesForEver => loop {
                std::thread::park();
            },
        }
    }

    fn time_limit(&self) -> Duration {
        Duration::from_millis(50)
    }
}

fn toys(threads: Vec<Box<dyn RankThread>>) -> Result<Workers<Toy>, StepError> {
    let edges = Edges::chain(threads.len());
    let ranks = threads.into_iter().enumerate().map(|(rank, thread)| {
        RankSetup::new(vec![(Stage::new(rank), Toy::new(rank, &edges, vec![2.0]))], thread)
    });
    Workers::start(ranks.collect())
}

/// Waits for the result of `run`, which would otherwise hang the test.
fn in_time<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, result) = mpsc::channel();
    std::thread::spawn(move || sender.send(run()).ok());
    result.recv_timeout(Duration::from_secs(20)).expect("it doesn't wait for ever")
}

#[test]
fn a_worker_that_never_starts_is_named() {
    silence_worker_panics();
    for how in [How::Drops, How::Leaks, How::Panics, How::TakesForEver] {
        for rank in 0..3 {
            let mut threads: Vec<Box<dyn RankThread>> =
                (0..3).map(|_| Box::new(PlainThread) as Box<dyn RankThread>).collect();
            threads[rank] = Box::new(Broken(how));
            let error = in_time(move || toys(threads).map(drop)).expect_err("refuses");
            let text = error.to_string();
            assert!(text.contains(&format!("the worker of rank {rank} hasn't started")), "{text}");
        }
    }
}

/// Runs the worker, and then stays.
struct Stays;

impl RankThread for Stays {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        worker();
        loop {
            std::thread::park();
        }
    }

    fn time_limit(&self) -> Duration {
        Duration::from_millis(50)
    }
}

#[test]
fn a_thread_that_never_ends_is_left_alone() {
    in_time(|| drop(toys(vec![Box::new(Stays), Box::new(PlainThread)]).expect("starts")));
}

/// The bytes of memory that this process uses.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|pages| pages.split_whitespace().nth(1)?.parse::<usize>().ok());
    pages.expect("the system tells") * 4096
}

/// Recurses, each time with a kilobyte of its own on the stack.
fn depth(left: usize) -> usize {
    let filled = std::hint::black_box([left as u8; 1024]);
    if left == 0 { 0 } else { 1 + depth(left - 1) + filled.len() - 1024 }
}

#[test]
fn stacks_are_deep_and_cost_nothing_until_they_are_used() {
    let before = resident();
    let mut workers = toys((0..32).map(|_| Box::new(PlainThread) as _).collect()).expect("starts");
    // 32 stacks of 256 MiB are reserved. Tests beside this one use some memory too.
    let used = resident().saturating_sub(before);
    assert!(used < 64 << 20, "{used} bytes");
    let deep = workers.visit(Stage::new(3), |_| depth(64 << 10)).expect("it returns");
    assert_eq!(deep, 64 << 10);
}

/// A value that panics when it is dropped.
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("a value fell over");
    }
}

/// The last stage returns a value that no edge takes.
struct Careless {
    stage: usize,
}

impl StageCompute for Careless {
    type Value = Option<Explosive>;
    type Input = ();
    type Output = ();
    type Error = Infallible;

    fn begin(&mut self, _: Begin<'_, ()>) -> Result<(), Infallible> {
        Ok(())
    }

    fn forward(
        &mut self,
        _: MicroBatch,
        _: Vec<Self::Value>,
        _: &StageRetention,
    ) -> Result<Vec<Self::Value>, Infallible> {
        Ok(vec![if self.stage == 1 { Some(Explosive) } else { None }])
    }

    fn recompute(&mut self, _: MicroBatch, _: &StageRetention) -> Result<(), Infallible> {
        Ok(())
    }

    fn backward(
        &mut self,
        _: MicroBatch,
        _: Vec<Self::Value>,
        _: &StageRetention,
    ) -> Result<Vec<Self::Value>, Infallible> {
        Ok(vec![None])
    }

    fn finish(&mut self) -> Result<Vec<u8>, Infallible> {
        Ok(Vec::new())
    }

    fn prepare(&mut self, _: &[Vec<u8>]) -> Result<(), Infallible> {
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn abandon(&mut self) {}

    fn take_output(&mut self) {}
}

#[test]
fn a_worker_that_dies_in_a_step_ends_it_on_all_ranks() {
    silence_worker_panics();
    let plan = OneFOneB.plan(Shape::new(2, 2)).expect("a plan");
    let program = program(&plan, &Retention::keep_all(&plan));
    let ranks = (0..2).map(|stage| {
        RankSetup::new(vec![(Stage::new(stage), Careless { stage })], Box::new(PlainThread))
    });
    let mut workers = Workers::start(ranks.collect()).expect("threads");
    let (error, again) = in_time(move || {
        let error = workers.step(&program, ().into()).expect_err("fails");
        (error, workers.step(&program, ().into()).expect_err("refuses"))
    });
    assert!(matches!(error, StepError::WorkerGone { rank } if rank.index() == 1), "{error}");
    assert!(matches!(again, StepError::Unusable { .. }), "{again}");
}
