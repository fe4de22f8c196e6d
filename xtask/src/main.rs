//! Developer commands: `cargo xtask test`, `lint`, `ci`. What they check stands in their own
//! modules; what users need is in the library and the examples.

mod lint;
mod shell;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
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
    /// Runs all tests of the default build, documentation examples included.
    Test {
        /// Further arguments for the test programs, such as part of a test's name.
        #[arg(last = true)]
        filter: Vec<String>,
    },
    /// Checks format, clippy, documentation, dependency direction and the head of every file.
    Lint,
    /// Everything that continuous integration runs: lint, then test.
    Ci,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Test { filter } => test(&filter),
        Command::Lint => lint::run(),
        Command::Ci => {
            lint::run()?;
            test(&[])
        }
    }
}

fn test(filter: &[String]) -> Result<()> {
    cargo(["test", "--"]).args(filter).run()
}
