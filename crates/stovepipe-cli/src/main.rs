//! The `stovepipe` command: plans, checks, prices and compares pipeline schedules before there is a
//! device to run them on. What the commands do is in the libraries; here are arguments and output.

mod by_name;
mod check;
mod compare;
mod costs;
mod input;
mod output;
mod partition;
mod plan;
mod shape;
mod simulate;
mod sweep;
mod tune;
mod units;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Commands to begin with, by the question that they answer.
const EXAMPLES: &str = "\
Look at a plan:            stovepipe plan --schedule 1f1b --ranks 4 --micro-batches 8
What would it take:        stovepipe simulate --schedule 1f1b --ranks 4 --micro-batches 8
Which schedule is best:    stovepipe compare --ranks 4 --micro-batches 8
How many micro-batches:    stovepipe sweep --ranks 4 --work 32 --overhead 0.5
Where to cut the layers:   stovepipe partition --costs 13,13,19,16 --parts 3
All of that at once:       stovepipe tune --profile profile.json --ranks 4 --batch 128";

/// Plans, checks, prices and compares pipeline schedules.
///
/// A schedule orders the work of ranks (devices) that hold consecutive stages of a model, for a
/// mini-batch cut into micro-batches. Times are plain numbers of any unit, the same everywhere, or
/// have their unit, as in 20ms.
#[derive(Parser)]
#[command(name = "stovepipe", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Plan(plan::Arguments),
    Check(check::Arguments),
    Simulate(simulate::Arguments),
    Compare(compare::Arguments),
    Sweep(sweep::Arguments),
    Partition(partition::Arguments),
    Tune(tune::Arguments),
    /// Writes a completion script for your shell to standard output.
    #[command(after_help = "Examples:\n  stovepipe completions bash > stovepipe.bash")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output may have seen enough of it.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Plan(arguments) => arguments.run(),
        Command::Check(arguments) => arguments.run(),
        Command::Simulate(arguments) => arguments.run(),
        Command::Compare(arguments) => arguments.run(),
        Command::Sweep(arguments) => arguments.run(),
        Command::Partition(arguments) => arguments.run(),
        Command::Tune(arguments) => arguments.run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "stovepipe", &mut script);
            output::print(&String::from_utf8(script)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
