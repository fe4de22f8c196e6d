//! Tests over processes: starts itself with `mpirun` for each test and looks at what became of the job.
//! Filters and options are those of the standard harness.

mod conformance;
mod launch;

use std::process::ExitCode;

use launch::launch;
use libtest_mimic::{Arguments, Trial};

/// What one rank of a job does; its name is the job's.
type Act = fn(&[String]) -> Result<(), String>;

const ACTS: [(&str, Act); 1] = [("conformance", conformance::run)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, job)) if first == launch::AS_RANK => rank(job),
        _ => libtest_mimic::run(&Arguments::from_args(), tests()).exit_code(),
    }
}

fn rank(job: &[String]) -> ExitCode {
    println!("{}{}", launch::PROCESS, std::process::id());
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
    // One after the other: every job has as many processes as cores, or more.
    let mut tests = Vec::new();
    for ranks in [1, 2, 3, 4] {
        tests.push(Trial::test(format!("conformance_{ranks}"), move || {
            Ok(launch(ranks, &["conformance"])?.must_succeed()?)
        }));
    }
    tests
}
