//! Tests over processes: starts itself with `mpirun` for each test and looks at what became of the
//! job. Filters and options are those of the standard harness.

mod communicator;
mod conformance;
mod exactness;
mod failures;
mod long_values;
mod memory;
mod model;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use stovepipe_testkit::jobs::{AS_RANK, PROCESS, launch};

/// The work of one rank of a job; its name is the job's.
type Act = fn(&[String]) -> Result<(), String>;

const ACTS: [(&str, Act); 6] = [
    ("communicator", communicator::run),
    ("conformance", conformance::run),
    ("exactness", exactness::run),
    ("failures", failures::run),
    ("long-values", long_values::run),
    ("memory", memory::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, job)) if first == AS_RANK => rank(job),
        _ => {
            // Every job has as many processes as cores, or more.
            let options = Arguments { test_threads: Some(1), ..Arguments::from_args() };
            libtest_mimic::run(&options, tests()).exit_code()
        }
    }
}

fn rank(job: &[String]) -> ExitCode {
    println!("{PROCESS}{}", std::process::id());
    let act = job.split_first().and_then(|(name, arguments)| {
        ACTS.iter().find(|(known, _)| known == name).map(|(_, act)| act(arguments))
    });
    match act.unwrap_or_else(|| Err(format!("there is no job {job:?}"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn tests() -> Vec<Trial> {
    let succeeds = |job: &'static str, ranks: usize| {
        Trial::test(format!("{job}_{ranks}"), move || Ok(launch(ranks, &[job])?.must_succeed()?))
    };
    let conformance = [1, 2, 3, 4].map(|ranks| succeeds("conformance", ranks));
    let exactness = [2, 3, 4].map(|ranks| succeeds("exactness", ranks));
    let tests = conformance
        .into_iter()
        .chain(exactness)
        .chain([succeeds("memory", 4), succeeds("communicator", 4)]);
    tests.chain(long_values::tests()).chain(failures::tests()).collect()
}
