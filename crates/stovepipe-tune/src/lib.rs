//! Chooses how to run a pipeline, from measured layer times.
//!
//! A [`Profile`] holds what each layer takes and needs at several sizes of a micro-batch, a
//! [`Cluster`] what the ranks have. The [`Tuner`] searches all configurations of ranks, stages per
//! rank, micro-batches, schedule and checkpoint policy: it cuts, plans and simulates what may be
//! fastest. It says which is, how far behind others are, and which don't fit, where, and by how
//! much.
//!
//! ```
//! use stovepipe_schedule::LayerMemory;
//! use stovepipe_tune::{Cluster, LayerProfile, Measurement, Profile, Time, Tuner};
//!
//! // Eight equal layers, measured with 1 and with 16 samples; each action takes 1 ms more.
//! let measurement = |samples: usize| Measurement {
//!     samples,
//!     forward: Time::exactly(1e-3 + 1e-3 * samples as f64),
//!     recompute: Time::exactly(1e-3 + 1e-3 * samples as f64),
//!     backward: Time::exactly(2e-3 + 2e-3 * samples as f64),
//!     input_bytes: 4096 * samples as u64,
//!     output_bytes: 4096 * samples as u64,
//!     memory: Some(LayerMemory { activations: 65536 * samples as u64, ..LayerMemory::default() }),
//! };
//! let layers = (0..8).map(|layer| LayerProfile {
//!     name: format!("blocks.{layer}"),
//!     parameter_bytes: 1 << 20,
//!     gradient_bytes: 1 << 20,
//!     optimizer_bytes: 2 << 20,
//!     update_bytes: 1 << 20,
//!     staged_bytes: 0,
//!     update: Time::exactly(1e-3),
//!     measurements: vec![measurement(1), measurement(16)],
//! });
//! let profile = Profile::new("an example", layers.collect())?;
//!
//! let report = Tuner::new(&profile, &Cluster::new(4)).batch(16).tune()?;
//! let best = &report.best().configuration;
//! assert_eq!(best.ranks, 4);
//! assert!(best.micro_batches > 1 && best.micro_batches < 16);
//! # Ok::<(), stovepipe_tune::TuneError>(())
//! ```
//!
//! Nothing here knows Burn: profiles come from whoever can measure, as JSON if need be.

mod cluster;
mod error;
mod messages;
mod profile;
mod report;
mod tuner;

pub use cluster::Cluster;
pub use error::TuneError;
pub use messages::MessageCosts;
pub use profile::{LayerProfile, Measurement, Profile, SkipProfile, Time};
pub use report::{Bounded, Choice, Configuration, Rejected, Report};
pub use tuner::Tuner;
