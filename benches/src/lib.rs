//! What the benchmarks share: the model, the measuring of its steps, and the report.

pub mod report;
mod steps;
mod transformer;

pub use steps::{Running, seconds, timelines};
pub use transformer::Model;
