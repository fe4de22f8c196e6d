//! Developer commands: `cargo xtask test`, `lint`, `setup`, `bench`, `ci`. What they check stands in their own
//! modules; what users need is in the library and the examples.

mod backend;
mod lint;
mod setup;
mod shell;
mod tidy;

use anyhow::Result;
use backend::Backend;
use clap::{Parser, Subcommand, ValueEnum};
use setup::Setup;
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
    /// Runs all tests, documentation examples and downstream crates included; of backends but Flex those of
    /// the backend.
    Test {
        /// The backend to test.
        #[arg(long, value_enum, default_value_t = Backend::Flex)]
        backend: Backend,
        /// Tests everything on every backend, after installing what that needs.
        #[arg(long, conflicts_with = "backend")]
        all: bool,
        /// Further arguments for the test programs, such as part of a test's name.
        #[arg(last = true)]
        filter: Vec<String>,
    },
    /// Checks format, clippy, documentation, dependency direction and the head of every file.
    Lint {
        /// Checks the backends' crates and features too, after setting up LibTorch.
        #[arg(long)]
        all: bool,
    },
    /// Installs what a backend needs on Debian or Ubuntu, or says how to.
    Setup {
        /// What for.
        #[arg(value_enum)]
        what: Setup,
    },
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
    /// Everything that continuous integration runs: lint, then test, both with all backends.
    Ci,
}

/// What can be measured.
#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    /// One stage against two.
    Stages,
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
            Self::Prediction => "prediction",
            Self::Recomputation => "recomputation",
            Self::Tuning => "tuning",
        }
    }
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Test { backend, all, filter } => match (all, backend) {
            (true, _) => test_all(&filter),
            (false, backend) => test(backend, &filter),
        },
        Command::Lint { all } => lint::run(all),
        Command::Setup { what } => what.run(),
        Command::Bench { benchmark, backend, arguments } => bench(benchmark, backend, &arguments),
        Command::Ci => {
            lint::run(true)?;
            test_all(&[])
        }
    }
}

/// In the release profile, whose build of Burn the examples and benchmarks share.
fn test(backend: Backend, filter: &[String]) -> Result<()> {
    backend.require()?;
    if matches!(backend, Backend::Wgpu | Backend::Tch) {
        // Tests that are named don't build the programs that they start.
        cargo(["build", "--release", "--example", "char-lm"]).args(backend.built()).run()?;
    }
    cargo(["test", "--release"]).args(backend.tested()).args(["--"]).args(filter).run()
}

/// Everything, with whatever it needs installed first.
fn test_all(filter: &[String]) -> Result<()> {
    for what in Setup::value_variants() {
        what.run()?;
    }
    // One build of Burn serves everything but CUDA's crate, which links LLVM.
    let together = ["test", "--release", "--workspace", "--exclude", "stovepipe-cuda"];
    let features = ["--features", backend::TOGETHER, "--"];
    cargo(together).args(features).args(filter).run()?;
    test(Backend::Cuda, filter)
}

fn bench(benchmark: Benchmark, backend: Backend, arguments: &[String]) -> Result<()> {
    backend.require()?;
    let bench = cargo(["bench", "--bench", benchmark.target()]).args(backend.built());
    let bench = bench.args(["--", "--backend", backend.name()]).args(arguments);
    if matches!((benchmark, backend), (Benchmark::Stages, Backend::Tch)) {
        // PyTorch on the same model stands in the same report.
        match setup::python() {
            python if python.exists() => return bench.args(["--torch"]).args([python]).run(),
            python => eprintln!("PyTorch is NOT MEASURED: there is no {}", python.display()),
        }
    }
    bench.run()
}
