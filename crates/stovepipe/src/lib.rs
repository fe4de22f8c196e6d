//! Pipeline-parallel training for Rust on the [Burn](burn) framework.
//!
//! Hand over a model that is a sequence of layers. stovepipe cuts it into stages over several
//! devices, streams micro-batches through them (GPipe, arXiv 1811.06965, and its descendants),
//! recomputes activations to save memory, and applies one exact synchronous update per mini-batch.
//!
//! ```
//! use stovepipe::burn::nn::LinearConfig;
//! use stovepipe::burn::optim::AdamConfig;
//! use stovepipe::burn::tensor::{Device, Distribution, Tensor, activation::relu};
//! use stovepipe::prelude::*;
//!
//! let model = Sequential::<Tensor<2>>::new()
//!     .push_module("up", |d| LinearConfig::new(8, 32).init(d), |m, x| m.forward(x))
//!     .push_fn("relu", |x: Tensor<2>| relu(x))
//!     .push_module("down", |d| LinearConfig::new(32, 1).init(d), |m, x: Tensor<2>| m.forward(x));
//!
//! let mut pipeline = Pipeline::builder(model)
//!     .backend(Flex::new())
//!     .stages(2)
//!     .micro_batches(4)
//!     .schedule(schedule::OneFOneB)
//!     .checkpoint(recompute::ExceptLast)
//!     .partitioner(partition::Minimax)
//!     .optimizer(AdamConfig::new().init())
//!     .learning_rate(1e-2)
//!     .loss(MeanSquaredError)
//!     .build()?;
//!
//! let device = Device::flex();
//! let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
//! let y = x.clone().sum_dim(1);
//! let first = pipeline.evaluate(x.clone(), y.clone())?.loss;
//! for _ in 0..20 {
//!     pipeline.step(x.clone(), y.clone())?;
//! }
//! assert!(pipeline.evaluate(x, y)?.loss < first);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Schedules, partitioners, checkpoint policies, transports and backends implement small
//! traits, each defined in a crate of its own. So they can also come from other crates. This
//! crate puts them together.

mod backends;

pub use backends::{NamedBackend, UnknownBackend, backend_named, backends};
pub use stovepipe_burn::*;
pub use stovepipe_checkpoint as recompute;
#[cfg(feature = "cuda")]
pub use stovepipe_cuda::Cuda;
#[cfg(feature = "flex")]
pub use stovepipe_flex::Flex;
#[cfg(feature = "mpi")]
pub use stovepipe_mpi::{Mpi, MpiBuilder, MpiError, rsmpi};
pub use stovepipe_partition as partition;
pub use stovepipe_runtime as runtime;
pub use stovepipe_schedule as schedule;
#[cfg(feature = "tch")]
pub use stovepipe_tch::Tch;
pub use stovepipe_transport as transport;
pub use stovepipe_tune as tune;
#[cfg(feature = "wgpu")]
pub use stovepipe_wgpu::Wgpu;

/// Names that most programs need. Schedules, partitioners and checkpoint policies stay in modules,
/// because some of their names, such as `Never` or `Uniform`, say little without one:
/// `schedule::OneFOneB`, `partition::Minimax`, `recompute::ExceptLast`.
///
/// Burn comes along under its own name, which is where `#[derive(Module)]` looks for it. So a crate
/// that depends on `stovepipe` alone can define layers, with the version and the features of Burn
/// that stovepipe was built with:
///
/// ```
/// use stovepipe::burn::module::Module;
/// use stovepipe::burn::nn::Linear;
/// use stovepipe::burn::tensor::Tensor;
/// use stovepipe::prelude::*;
///
/// #[derive(Module, Debug)]
/// struct Residual {
///     linear: Linear,
/// }
///
/// impl Layer for Residual {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
///         x.clone() + self.linear.forward(x)
///     }
/// }
/// ```
pub mod prelude {
    pub use stovepipe_burn::burn;
    pub use stovepipe_burn::{
        Accuracy, Backend, Clipping, CrossEntropy, Layer, LayerContext, LayerCosts, Loss, LossSum,
        MeanSquaredError, Pipeline, Sequential,
    };
    pub use stovepipe_checkpoint::{self as recompute, CheckpointPolicy};
    #[cfg(feature = "cuda")]
    pub use stovepipe_cuda::Cuda;
    #[cfg(feature = "flex")]
    pub use stovepipe_flex::Flex;
    #[cfg(feature = "mpi")]
    pub use stovepipe_mpi::Mpi;
    pub use stovepipe_partition::{self as partition, Partitioner};
    pub use stovepipe_schedule::{self as schedule, Schedule};
    #[cfg(feature = "tch")]
    pub use stovepipe_tch::Tch;
    #[cfg(feature = "wgpu")]
    pub use stovepipe_wgpu::Wgpu;
}
