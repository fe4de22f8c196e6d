//! Developer commands: `cargo xtask setup`, `test`, `lint`, `bench`, `ci`. What they check stands in their own
//! modules; what users need is in the library and the examples.

mod lint;
mod setup;
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
    /// Installs what some crates need beyond a Rust toolchain, or says how to.
    Setup {
        /// For what.
        #[arg(value_enum)]
        what: setup::Setup,
    },
    /// Runs all tests, documentation examples and downstream crates included.
    Test {
        /// Runs the tests of this transport instead, which start `mpirun` themselves.
        #[arg(long, value_enum)]
        transport: Option<Transport>,
        /// Further arguments for the test programs, such as part of a test's name.
        #[arg(last = true)]
        filter: Vec<String>,
    },
    /// Checks format, clippy, documentation, dependency direction and the head of every file.
    Lint {
        /// Checks clippy and documentation with this transport instead.
        #[arg(long, value_enum)]
        transport: Option<Transport>,
    },
    /// Measures training on a backend, prints a table and writes JSON.
    Bench {
        /// What is measured.
        #[arg(value_enum, default_value_t = Benchmark::Stages)]
        benchmark: Benchmark,
        /// The backend to measure on.
        #[arg(long, value_enum, required_unless_present = "transport")]
        backend: Option<Backend>,
        /// The transport to measure.
        #[arg(long, value_enum, conflicts_with = "backend")]
        transport: Option<Transport>,
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
    /// A job between two network namespaces, next to its prediction; needs root.
    Link,
    /// The exchange of boundaries over a transport, against its plain messages.
    Transport,
    /// The tuner's choice against everything it could have chosen.
    Tuning,
}

impl Benchmark {
    fn target(self) -> &'static str {
        match self {
            Self::Stages => "stages",
            Self::Link => "link",
            Self::Memory => "memory",
            Self::Prediction => "prediction",
            Self::Recomputation => "recomputation",
            Self::Transport => "exchange",
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

/// The transports between processes.
#[derive(Clone, Copy, ValueEnum)]
enum Transport {
    /// Over MPI.
    Mpi,
}

impl Transport {
    fn package(self) -> &'static str {
        match self {
            Self::Mpi => "stovepipe-mpi",
        }
    }

    /// The feature of the facade, the examples and the benchmarks.
    fn feature(self) -> &'static str {
        match self {
            Self::Mpi => "mpi",
        }
    }
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Setup { what } => setup::run(what),
        Command::Test { transport: None, filter } => test(&filter),
        Command::Test { transport: Some(transport), filter } => {
            cargo(["test", "--release", "--package", transport.package()]).run()?;
            let jobs = cargo(["test", "--release", "--features", transport.feature()]);
            jobs.args(["--test", "jobs", "--"]).args(filter).run()
        }
        Command::Lint { transport: None } => lint::run(),
        Command::Lint { transport: Some(transport) } => {
            lint::compiled(&["--package", transport.package()])?;
            lint::compiled(&["--features", transport.feature()])
        }
        Command::Bench { benchmark, backend: _, transport, arguments } => {
            let features = transport.into_iter().flat_map(|t| ["--features", t.feature()]);
            let bench = cargo(["bench", "--bench", benchmark.target()]).args(features);
            bench.args(["--"]).args(arguments).run()
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
