//! Developer commands: `cargo xtask test`, `lint`, `bench`, `ci`. What they check stands in their own
//! modules; what users need is in the library and the examples.

mod lint;
mod shell;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use shell::cargo;

/// Developer commands of stovepipe.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs all tests, documentation examples and downstream crates included.
    Test {
        /// Further arguments for the test programs, such as part of a test's name.
        #[arg(last = true)]
        filter: Vec<String>,
    },
    /// Checks format, clippy, documentation, dependency direction and the head of every file.
    Lint,
    /// Measures training on a backend, prints a table and writes JSON.
    Bench {
        /// What is measured.
        #[arg(value_enum, default_value_t = Benchmark::Stages)]
        benchmark: Benchmark,
        /// The backend to measure on.
        #[arg(long, value_enum)]
        backend: Backend,
        /// Arguments for the benchmark; `-- --help` lists them.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Everything that continuous integration runs: lint, then test.
    Ci,
}

/// What can be measured.
#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    /// One stage against two.
    Stages,
    /// What ranks allocate, against what is predicted of them, and what fits into a limit.
    Memory,
    /// Steps against what the tuner predicts of them.
    Prediction,
    /// Steps with and without recomputation.
    Recomputation,
    /// The tuner's choice against everything it could have chosen.
    Tuning,
}

impl Benchmark {
    fn target(self) -> &'static str {
        match self {
            Self::Stages => "stages",
            Self::Memory => "memory",
            Self::Prediction => "prediction",
            Self::Recomputation => "recomputation",
            Self::Tuning => "tuning",
        }
    }
}

/// The backends that benchmarks can run on.
#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    /// Burn's Flex backend on the processor.
    Flex,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Test { filter } => test(&filter),
        Command::Lint => lint::run(),
        Command::Bench { benchmark, backend: Backend::Flex, arguments } => {
            cargo(["bench", "--bench", benchmark.target(), "--"]).args(arguments).run()
        }
        Command::Ci => {
            lint::run()?;
            test(&[])
        }
    }
}

/// In the release profile, whose build of Burn the examples and benchmarks share.
fn test(filter: &[String]) -> Result<()> {
    cargo(["test", "--release", "--"]).args(filter).run()
}
