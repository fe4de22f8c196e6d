//! The frame of every benchmark that trains: its command line, and its report with the machine.
//!
//! ```no_run
//! use clap::Args;
//! use serde::Serialize;
//! use stovepipe_benches::{Bench, seconds, steps, table};
//!
//! /// Measures training steps on several stages.
//! #[derive(Args)]
//! struct Own {
//!     /// Stages.
//!     #[arg(long, default_value_t = 2)]
//!     stages: usize,
//! }
//!
//! #[derive(Serialize)]
//! struct Report {
//!     stages: usize,
//!     step: f64,
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     let bench = Bench::<Own>::parse("mine");
//!     let mut pipeline = bench.builder()?.stages(bench.own.stages).build()?;
//!     let step = steps(&mut pipeline, bench.model, 5)?.time().median;
//!     println!("{}", table(["stages", "step"], [[bench.own.stages.to_string(), seconds(step)]]));
//!     bench.report(Report { stages: bench.own.stages, step })
//! }
//! ```

use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use stovepipe::prelude::*;

use crate::model::{BenchBuilder, Model};
use crate::on::{Machine, On};
use crate::report::Destination;

/// A benchmark: what it was asked for.
pub struct Bench<A> {
    name: &'static str,
    /// Its own arguments.
    pub own: A,
    /// The backend that it runs on.
    pub on: On,
    /// The model that it trains.
    pub model: Model,
    destination: Destination,
}

impl<A: Args> Bench<A> {
    /// Reads the command line of the benchmark of this name. What it does is said by the comment on
    /// its own arguments.
    #[must_use]
    pub fn parse(name: &'static str) -> Self {
        Self::parse_with(name, &[])
    }

    /// The same with other defaults for some of the arguments that all benchmarks have.
    #[must_use]
    pub fn parse_with(name: &'static str, defaults: &[(&'static str, &'static str)]) -> Self {
        let own = A::augment_args(Command::new(name));
        // The others would put their descriptions in its place.
        let short = own.get_about().cloned().unwrap_or_default();
        let long = own.get_long_about().cloned().unwrap_or_else(|| short.clone());
        let command = Destination::augment_args(Model::augment_args(On::augment_args(own)));
        let mut command = command.about(short).long_about(long);
        for &(argument, value) in defaults {
            command = command.mut_arg(argument, |argument| argument.default_value(value));
        }
        let read = |matches: &ArgMatches| {
            Ok(Self {
                name,
                own: A::from_arg_matches(matches)?,
                on: On::from_arg_matches(matches)?,
                model: Model::from_arg_matches(matches)?,
                destination: Destination::from_arg_matches(matches)?,
            })
        };
        let matches = command.clone().get_matches();
        read(&matches).unwrap_or_else(|error: clap::Error| error.format(&mut command).exit())
    }
}

impl<A> Bench<A> {
    /// The backend that was asked for.
    ///
    /// # Errors
    ///
    /// If there is none of that name.
    pub fn backend(&self) -> Result<Box<dyn Backend>> {
        self.on.backend()
    }

    /// Begins a pipeline of the model on the backend, all else at its defaults.
    ///
    /// # Errors
    ///
    /// If there is no backend of that name.
    pub fn builder(&self) -> Result<BenchBuilder> {
        Ok(self.model.builder(self.backend()?))
    }

    /// Writes the report as JSON, after the machine and the model, and says where.
    ///
    /// # Errors
    ///
    /// If it can't be written.
    pub fn report(&self, own: impl Serialize) -> Result<()> {
        let report = Report { machine: self.on.machine()?, model: self.model, own };
        self.destination.write(self.name, &report)
    }
}

/// A report, after what all begin with.
#[derive(Serialize)]
struct Report<R> {
    machine: Machine,
    model: Model,
    #[serde(flatten)]
    own: R,
}
