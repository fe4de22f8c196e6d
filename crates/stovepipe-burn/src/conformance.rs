//! The conformance suite for implementors of [`Backend`](crate::Backend): what a pipeline needs of
//! a device. Its models are so small that a software renderer trains them in seconds. It checks the
//! [contract](crate::Backend#contract), not speed.
//!
//! ```
//! # use burn::tensor::Device;
//! # use stovepipe_burn::{Backend, BackendError};
//! # struct MyBackend;
//! # impl Backend for MyBackend {
//! #     fn name(&self) -> &str { "mine" }
//! #     fn devices(&self) -> Result<Vec<Device>, BackendError> { Ok(vec![Device::flex()]) }
//! # }
//! use stovepipe_burn::conformance;
//!
//! let findings = conformance::run_all(MyBackend).expect("MyBackend keeps the contract");
//! conformance::tell(&findings);
//! ```
//!
//! A backend that can be asked for a device which isn't there also calls [`missing_device`].

mod devices;
mod memory;
mod model;
mod reference;
mod report;
mod suite;
#[cfg(test)]
mod tests;
mod training;
mod values;
mod verdict;

pub use report::{Finding, tell, tell_unchecked};
pub use suite::{Check, LIMIT, checks, missing_device, run_all, run_all_within};
pub use verdict::{Outcome, Verdict};
