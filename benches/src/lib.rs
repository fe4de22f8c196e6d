//! What the benchmarks share: the backend, the model, the measuring of its steps, and the report.

mod on;
pub mod report;
mod steps;
mod transformer;

pub use on::{Machine, On};
pub use steps::{BenchPipeline, Steps, steps};
pub use transformer::Model;
