//! Workers end with their pipeline. Alone in its file, because it counts the threads of its
//! process.

#[path = "it/toy.rs"]
mod toy;

use std::sync::Arc;
use std::time::Duration;

use stovepipe_runtime::StepPhase;
use stovepipe_schedule::{Edges, GPipe, Retention, Schedule, Shape};
use toy::{Batch, Fault, How, batch, pipeline, program};

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").map(|tasks| {
        let names =
            tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
        names.filter(|name| name.starts_with("stovepipe-")).count()
    });
    tasks.unwrap_or(0)
}

/// Whether they end. The system lists a thread for a moment longer than it takes to join it.
fn end() -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        threads() == 0
    })
}

#[test]
fn no_thread_is_left_over_after_a_failure() {
    let plan = GPipe::default().plan(Shape::new(3, 4)).expect("a plan");
    let program = program(&plan, &Retention::keep_all(&plan));
    let start = || pipeline(&plan, &Edges::chain(3), &vec![vec![2.0]; 3]);
    let mut workers = start();
    assert!(workers.step(&program, batch(&[1.0; 4])).is_ok());
    // Where there is a list of threads, it shows the workers.
    assert!(threads() == 3 || !std::path::Path::new("/proc/self/task").exists());
    let fault =
        Fault { stage: 1, phase: StepPhase::Forward, micro_batch: Some(2), how: How::Error };
    let failing = Arc::new(Batch { samples: vec![1.0; 4], fault: Some(fault) });
    assert!(workers.step(&program, failing).is_err());
    drop(workers);
    assert!(end(), "workers are left over");
    // And the process can train another pipeline.
    assert!(start().step(&program, batch(&[1.0; 4])).is_ok());
    assert!(end(), "workers are left over");
}
