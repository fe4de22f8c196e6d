//! Everything that the benchmarks share: command line, machine, model, measured steps, tables and
//! reports.
//!
//! One that trains begins with [`Bench::parse`] and ends with [`Bench::report`].

mod harness;
mod model;
mod on;
mod report;
mod round_trips;
mod steps;
mod table;

pub use harness::Bench;
pub use model::{BenchBuilder, BenchPipeline, Model};
pub use on::{Machine, On};
pub use round_trips::{act_of_rank, round_trips};
pub use steps::{Steps, steps};
pub use table::{deviation, mebibytes, seconds, spread, table};
