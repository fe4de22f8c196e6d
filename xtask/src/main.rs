//! Developer commands: `cargo xtask setup`, `test`, `lint`, `ci`, `bench`. What they check stands
//! in their own modules; what users need is in the library and the examples.

mod backend;
mod docs;
mod floors;
mod lint;
mod packages;
mod setup;
mod shell;
mod test;
mod tidy;

use anyhow::{Result, bail};
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
    /// Runs all tests that need only Rust, documentation examples and downstream crates included;
    /// of backends but Flex and of transports those of the backend or transport.
    Test {
        /// The backend to test.
        #[arg(long, value_enum, default_value_t = Backend::Flex)]
        backend: Backend,
        /// Runs the tests of this transport instead, which start `mpirun` themselves.
        #[arg(long, value_enum, conflicts_with = "backend")]
        transport: Option<Transport>,
        /// Tests everything on every backend and transport, after installing what that needs.
        #[arg(long, conflicts_with_all = ["backend", "transport"])]
        all: bool,
        /// Further arguments for the test programs, such as part of a test's name.
        #[arg(last = true)]
        filter: Vec<String>,
    },
    /// Checks format, house rules, dependencies, clippy and documentation.
    Lint {
        /// Checks the crates and features of backends and transports too, after setting up what
        /// that needs.
        #[arg(long)]
        all: bool,
        /// Checks clippy and documentation with this transport instead.
        #[arg(long, value_enum, conflicts_with = "all")]
        transport: Option<Transport>,
    },
    /// Writes the tables and pictures of the documents from the code.
    Docs,
    /// Does all that is done before a change is accepted: checks and tests everything, with every
    /// backend and transport, after installing what they need.
    Ci,
    /// Installs what a backend or a transport needs on Debian or Ubuntu, or says how to.
    Setup {
        /// The backend or transport.
        #[arg(value_enum, required = true)]
        what: Vec<Setup>,
    },
    /// Measures training on a backend, prints a table and writes JSON; or a transport, and prints.
    Bench {
        /// The thing to measure.
        #[arg(value_enum, default_value_t = Benchmark::Stages)]
        benchmark: Benchmark,
        /// The backend to measure on.
        #[arg(long, value_enum, required_unless_present = "transport")]
        backend: Option<Backend>,
        /// The transport to measure.
        #[arg(long, value_enum, conflicts_with = "backend")]
        transport: Option<Transport>,
        /// Further features of Cargo, such as `autotune`, `fusion` and `vulkan` on graphics
        /// processors.
        #[arg(long, value_delimiter = ',')]
        features: Vec<String>,
        /// Arguments for the benchmark; `-- --help` lists them.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
}

/// A thing that can be measured.
#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    /// One stage against two.
    Stages,
    /// The memory that ranks allocate, next to its prediction, and models that fit into a limit.
    Memory,
    /// Steps against what the tuner predicts of them.
    Prediction,
    /// Steps with and without recomputation.
    Recomputation,
    /// A job between two network namespaces, next to its prediction; needs root.
    Link,
    /// The exchange of boundaries over a transport, against its plain messages.
    Transport,
    /// The bookkeeping of tapes, with few and with many micro-batches in flight.
    Tapes,
    /// The tuner's choice against everything it could have chosen.
    Tuning,
}

impl Benchmark {
    fn is_of_transports(self) -> bool {
        matches!(self, Self::Link | Self::Transport)
    }

    fn target(self) -> &'static str {
        match self {
            Self::Stages => "stages",
            Self::Link => "link",
            Self::Memory => "memory",
            Self::Prediction => "prediction",
            Self::Recomputation => "recomputation",
            Self::Transport => "exchange",
            Self::Tapes => "tapes",
            Self::Tuning => "tuning",
        }
    }
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
        Command::Test { all: true, filter, .. } => test::all(&filter),
        Command::Test { transport: Some(transport), filter, .. } => {
            test::transport(transport, &filter)
        }
        Command::Test { backend, filter, .. } => test::backend(backend, &filter),
        Command::Lint { transport: Some(transport), .. } => {
            lint::compiled(&["--package", transport.package()])?;
            lint::compiled(&["--features", transport.feature()])
        }
        Command::Lint { all, .. } => lint::run(all),
        Command::Docs => docs::write(),
        Command::Ci => ci(),
        Command::Setup { what } => what.into_iter().try_for_each(Setup::run),
        Command::Bench { benchmark, backend: Some(backend), features, arguments, .. } => {
            if benchmark.is_of_transports() {
                bail!("it is measured of a transport: say which with `--transport`");
            }
            bench(benchmark, backend, &features, &arguments)
        }
        Command::Bench { benchmark, transport, features, arguments, .. } => {
            if !benchmark.is_of_transports() {
                bail!("it is measured on a backend: say which with `--backend`");
            }
            let own = transport.into_iter().flat_map(|t| ["--features", t.feature()]);
            let bench = cargo(["bench", "--bench", benchmark.target()]).args(own);
            let bench = bench.args(features.iter().flat_map(|feature| ["--features", feature]));
            bench.args(["--"]).args(arguments).run()
        }
    }
}

/// Tests what users get by default as they build it, while everything is installed and linted. Then
/// tests what that has installed.
fn ci() -> Result<()> {
    let myself = std::env::current_exe()?;
    let linting = shell::program(myself).args(["lint", "--all"]).meanwhile()?;
    let default = test::backend(Backend::Flex, &[]);
    let linted = linting.wait();
    test::both(linted, test::both(default, test::others(&[])))
}

fn bench(
    benchmark: Benchmark,
    backend: Backend,
    features: &[String],
    arguments: &[String],
) -> Result<()> {
    backend.require()?;
    let mut bench = cargo(["bench", "--bench", benchmark.target()]).args(backend.built());
    bench = bench.args(features.iter().flat_map(|feature| ["--features", feature]));
    bench = bench.args(["--", "--backend", backend.name()]).args(arguments);
    let is_chosen = arguments.iter().any(|argument| argument.starts_with("--torch"));
    if matches!((benchmark, backend), (Benchmark::Stages, Backend::Tch)) && !is_chosen {
        // PyTorch on the same model, with the same library, stands in the same report.
        match setup::python() {
            Some(python) => bench = bench.args(["--torch"]).args([python]),
            None => eprintln!(
                "PyTorch is NOT MEASURED: the LibTorch of LIBTORCH is in no Python environment; unset it and run \
                 `cargo xtask setup tch`, or give a Python that has it with `-- --torch PYTHON`"
            ),
        }
    }
    bench.run()
}
