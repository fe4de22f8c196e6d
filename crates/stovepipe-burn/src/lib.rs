//! Pipelines of Burn layers.
//!
//! A [`Sequential`] model of typed [`Layer`]s is cut into stages; each stage runs on a device of a
//! [`Backend`]. A [`Pipeline`] streams micro-batches through the stages, recomputes activations where
//! the checkpoint policy asks for it, and applies one exact synchronous update per mini-batch.
//!
//! On a deterministic backend, loss, gradients and parameters are the same bits for every number of
//! stages, every partition, every checkpoint policy and every schedule that drains micro-batches in
//! the same order. Two measures make that true: the tape is cut at every layer boundary, also inside
//! a stage, and values are contiguous there.

mod backend;
mod batch;
mod batch_norm;
mod boundary;
mod builder;
mod cell;
pub mod conformance;
mod context;
mod error;
mod gradients;
mod hosted;
mod init;
mod layer;
mod loss;
mod part;
mod pipeline;
mod precision;
mod processes;
mod profile;
mod profiling;
mod random;
mod rehearsal;
mod replay;
mod report;
mod sequential;
mod skips;
mod spec;
mod split;
mod stage;
mod ties;
mod wire;

pub use backend::{Backend, BackendError, Mixed};
pub use batch_norm::BatchNorm;
pub use boundary::{Boundary, BoundaryError};
pub use builder::{Builder, LayerCosts};
pub use burn;
pub use context::{LayerContext, Pass};
pub use error::{BuildError, ProfileError, StageError, TrainError};
pub use gradients::Clipping;
pub use layer::{Apply, Layer, Stateless};
pub use loss::{
    Accuracy, CrossEntropy, CrossEntropyIgnoring, Loss, LossSum, MeanSquaredError, NoLoss, Weight,
    Weighted,
};
pub use part::Packet;
pub use pipeline::{
    Accumulation, Evaluation, Gradients, Pipeline, SharedDevice, StageSummary, Step,
};
pub use precision::LossScaling;
pub use profiling::{MemoryCounter, Profiling};
pub use rehearsal::Rehearsal;
pub use sequential::Sequential;
pub use split::micro_batch_ranges;
pub use stovepipe_runtime::{PlainThread, RankThread, StepError};
