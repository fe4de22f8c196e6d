//! Models, batches and comparisons that tests of stovepipe share, and the launching of MPI jobs.
//!
//! Not published. Everything here is small and made up, and panics where a test should fail.
//!
//! ```
//! use stovepipe::burn::tensor::Tensor;
//! use stovepipe_testkit::{LinearLayers, classifier, embed, same_on_any_cut, train};
//!
//! let negate = |x: Tensor<3>| x.neg();
//! let model = || embed().push_fn("once", negate).push_fn("twice", negate).head();
//! let (losses, _) = same_on_any_cut(|| classifier(model()), train);
//! assert!(losses[2] < losses[0]);
//! ```

mod counting_flex;
mod cuts;
pub mod jobs;
mod layers;
mod models;
mod pipelines;
mod process;
mod ranks;
mod values;
pub mod vectors;

pub use counting_flex::CountingFlex;
pub use cuts::{MakePolicy, MakeSchedule, same_on_any_cut};
pub use layers::{Attention, Down, Embed, Fork, Join, Up};
pub use models::{LinearLayers, embed, toy};
pub use pipelines::{Classifier, Setup, adam, build, classifier, on_one_stage, train};
pub use process::alone;
pub use ranks::on_ranks;
pub use values::{
    Bits, CLASSES, DIM, SEQ, Tokens, batch, bits, floats, parameter_bits, relative_difference,
};
