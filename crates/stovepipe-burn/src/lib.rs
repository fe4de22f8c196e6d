//! Pipelines of Burn layers.
//!
//! A [`Sequential`] model of typed [`Layer`]s is cut into stages. Each stage runs on a device
//! of a [`Backend`]. A [`Pipeline`] streams micro-batches through the stages, recomputes
//! activations where the checkpoint policy asks for it, and applies one exact synchronous
//! update per mini-batch.
//!
//! On a deterministic backend, loss, gradients and parameters are the same bits for every
//! number of stages, every partition, every checkpoint policy and every schedule that drains
//! micro-batches in the same order. Two measures ensure that:
//!
//! - The tape is cut at every layer boundary, also inside a stage.
//! - Values are contiguous at every layer boundary.

mod autodiff;
mod backend;
pub mod conformance;
mod error;
mod hash;
mod layer;
mod loss;
mod model;
mod parameters;
mod pipeline;
mod profile;
mod stage;
mod value;

pub use backend::Backend;
pub use backend::error::BackendError;
pub use backend::mixed::Mixed;
pub use burn;
pub use error::build::BuildError;
pub use error::profile::ProfileError;
pub use error::shape::ShapeError;
pub use error::stage::StageError;
pub use error::train::TrainError;
pub use layer::Layer;
pub use layer::apply::{Apply, Stateless};
pub use layer::batch_norm::BatchNorm;
pub use layer::context::{LayerContext, Pass};
pub use layer::sample_axis::SampleAxis;
pub use loss::losses::{Accuracy, CrossEntropy, CrossEntropyIgnoring, MeanSquaredError, Weighted};
pub use loss::scaling::LossScaling;
pub use loss::{Loss, LossSum, NoLoss, Weight};
pub use model::sequential::Sequential;
pub use parameters::averaging::Clipping;
pub use pipeline::Pipeline;
pub use pipeline::builder::Builder;
pub use pipeline::layer_costs::LayerCosts;
pub use pipeline::outcomes::{Accumulation, Evaluation, Gradients, Step};
pub use pipeline::summary::{SharedDevice, StageSummary};
pub use profile::counter::MemoryCounter;
pub use profile::messages::measure_messages;
pub use profile::profiling::Profiling;
pub use profile::rehearsal::Rehearsal;
pub use stage::split::micro_batch_ranges;
pub use stovepipe_runtime::{PlainThread, RANK_STACK, RankThread, StepError};
pub use value::boundary::{Boundary, BoundaryError};
pub use value::packet::Packet;
