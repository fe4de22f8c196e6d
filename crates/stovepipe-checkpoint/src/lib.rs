//! Decides which activations a pipeline keeps from forward to backward, and which it recomputes.
//!
//! A [`CheckpointPolicy`] looks at a plan and at the number of layers in each stage. It returns a
//! [`Retention`](stovepipe_schedule::Retention), which lowering, simulator and executor take as
//! data. [`lower`] goes all the way from a plan to a program, and [`policies()`] lists what there
//! is by name. Nothing here knows a tensor or a device.
//!
//! An activation checkpoint (Chen et al., arXiv 1604.06174) is an activation that is kept so that
//! others can be recomputed from it: here, the input of a stage or of a segment of its layers.

mod activations;
mod error;
mod lower;
mod named;
mod policies;
mod policy;

pub use activations::LayerActivations;
pub use error::PolicyError;
pub use lower::{decide, lower};
pub use named::{NamedPolicy, PolicyFacts};
// Whatever the registry lists: a new policy needs no line here.
pub use policies::*;
pub use policy::{CheckpointPolicy, Layout};
