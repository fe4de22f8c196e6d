//! The trait that binds pipelines to devices.
//!
//! Its implementations are crates of their own. `conformance` checks that they keep the
//! contract.

use std::sync::Arc;

use burn::tensor::Device;
use stovepipe_runtime::{PlainThread, RankThread};

use crate::backend::error::BackendError;
use crate::value::packet::Packet;

pub(crate) mod error;
pub(crate) mod mixed;
pub(crate) mod rank_job;

/// A provider of devices and of the rank threads that drive them.
///
/// It isn't the type parameter of earlier Burn versions: tensors choose Burn's backend by
/// their device.
///
/// Backends and schedules don't depend on each other.
///
/// # Contract
///
/// - [`name`](Self::name) and [`devices`](Self::devices) are all that must be written. The
///   other methods default to what Burn offers for every device, which is right for eager and
///   lazy devices alike.
/// - [`devices`](Self::devices) returns the same devices in the same order whenever it is
///   called.
/// - If a device that was asked for is missing, the error lists what was found and says what
///   to install.
/// - No method panics.
/// - Two methods alone may wait for a device: [`synchronize`](Self::synchronize), and
///   [`receive`](Self::receive) where a value must pass through the host.
/// - A rank's worker runs on the thread that [`rank_thread`](Self::rank_thread) returns, and
///   so does all work on the rank's device. The thread may bring a thread pool, a number of
///   threads, or a stream.
/// - Values and gradients are moved by [`receive`](Self::receive), on the receiving rank. No
///   element changes on the way.
/// - [`is_deterministic`](Self::is_deterministic) is a promise: the same bits for every number
///   of stages and every checkpoint policy.
///
/// [`conformance::run_all`](crate::conformance::run_all) checks the contract for a backend in
/// any crate.
///
/// # Example
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_burn::{Backend, BackendError, RANK_STACK, RankThread};
///
/// /// All ranks on Burn's Flex backend, in threads with large stacks.
/// struct DeepFlex;
///
/// impl Backend for DeepFlex {
///     fn name(&self) -> &str {
///         "deep-flex"
///     }
///
///     fn devices(&self) -> Result<Vec<Device>, BackendError> {
///         Ok(vec![Device::flex()])
///     }
///
///     fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
///         Ok(Box::new(DeepStack { rank }))
///     }
/// }
///
/// struct DeepStack {
///     rank: usize,
/// }
///
/// impl RankThread for DeepStack {
///     fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
///         let builder = std::thread::Builder::new().name(format!("deep-{}", self.rank));
///         // `run` may return only when the worker has, and its threads have ended.
///         if let Ok(thread) = builder.stack_size(2 * RANK_STACK).spawn(worker) {
///             let _ = thread.join();
///         }
///     }
/// }
///
/// stovepipe_burn::conformance::run_all(DeepFlex).expect("DeepFlex keeps the contract");
/// ```
pub trait Backend: Send + Sync {
    /// Returns the name used in command lines, errors and reports, like `flex`.
    fn name(&self) -> &str;

    /// Returns the devices to use, at least one, without autodiff.
    ///
    /// Rank r runs on device r modulo their number, so that ranks share devices where there
    /// are too few.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoDevice`] if there is none, or one that was asked for is missing.
    fn devices(&self) -> Result<Vec<Device>, BackendError>;

    /// Returns a device's name in reports, errors and profiles.
    ///
    /// By default as Burn writes it.
    fn device_name(&self, device: &Device) -> String {
        let name = format!("{device:?}");
        let inner = name.strip_prefix("Device<").and_then(|name| name.strip_suffix('>'));
        inner.unwrap_or(&name).to_owned()
    }

    /// Returns the thread that the worker of `rank` runs on, by default a plain thread.
    ///
    /// On devices with streams each thread has a stream of its own. In a
    /// [`Mixed`](crate::Mixed) backend, `rank` is not the pipeline's rank. It is a number for
    /// which this backend alone would choose the same device, and no two ranks on one backend
    /// have the same number.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if no such thread can be made.
    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        let _ = rank;
        Ok(Box::new(PlainThread))
    }

    /// Submits the work that is queued for a lazy device, so that it starts at once.
    ///
    /// Called after every action of a stage, on its rank thread. By default Burn's own flush,
    /// which is free on eager devices.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if the device reports an error.
    fn flush(&self, device: &Device) -> Result<(), BackendError> {
        device.flush().map_err(|error| BackendError::failed(self.name(), error))
    }

    /// Waits until everything that was queued from this thread is done.
    ///
    /// Called where time is measured, never within a step.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if the device reports an error.
    fn synchronize(&self, device: &Device) -> Result<(), BackendError> {
        device.sync().map_err(|error| BackendError::failed(self.name(), error))
    }

    /// Moves a value from wherever it is to `device`, off the tape and contiguous.
    ///
    /// By default it moves directly between devices of one kind, and through the host between
    /// others. Through the host, whole numbers and truth values take the types that `device`
    /// computes with.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if a device reports an error.
    fn receive(&self, value: Packet, device: &Device) -> Result<Packet, BackendError> {
        Ok(value.to_device(device))
    }

    /// Returns the bytes in use on the device, or `None` where that isn't known.
    ///
    /// By default as Burn's allocator for the device reports.
    fn memory(&self, device: &Device) -> Option<u64> {
        Some(device.memory_pool_usage()?.bytes_in_use)
    }

    /// Says whether devices queue work and do it later.
    ///
    /// Timelines then say when work was queued, not when it was done.
    fn is_lazy(&self) -> bool {
        false
    }

    /// Says whether ranks on this device compute at the same time, each on threads of its own,
    /// as on processors.
    ///
    /// Ranks on any other device are reported to [share](crate::Pipeline::shared_devices) it.
    fn is_parallel(&self, device: &Device) -> bool {
        let _ = device;
        false
    }

    /// Says whether the same operations on the same values always give the same bits, whatever
    /// else runs.
    fn is_deterministic(&self) -> bool {
        false
    }

    /// Returns the relative distance that gradients may have from those on Flex.
    ///
    /// It is the norm of the difference of the two gradients, divided by the norm of either.
    /// Single precision with sums in another order stays well below the default of 1e-4.
    fn precision(&self) -> f64 {
        1e-4
    }
}

macro_rules! forward_to_pointee {
    ($pointer:ident) => {
        impl<B: Backend + ?Sized> Backend for $pointer<B> {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn devices(&self) -> Result<Vec<Device>, BackendError> {
                (**self).devices()
            }

            fn device_name(&self, device: &Device) -> String {
                (**self).device_name(device)
            }

            fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
                (**self).rank_thread(rank)
            }

            fn flush(&self, device: &Device) -> Result<(), BackendError> {
                (**self).flush(device)
            }

            fn synchronize(&self, device: &Device) -> Result<(), BackendError> {
                (**self).synchronize(device)
            }

            fn receive(&self, value: Packet, device: &Device) -> Result<Packet, BackendError> {
                (**self).receive(value, device)
            }

            fn memory(&self, device: &Device) -> Option<u64> {
                (**self).memory(device)
            }

            fn is_lazy(&self) -> bool {
                (**self).is_lazy()
            }

            fn is_parallel(&self, device: &Device) -> bool {
                (**self).is_parallel(device)
            }

            fn is_deterministic(&self) -> bool {
                (**self).is_deterministic()
            }

            fn precision(&self) -> f64 {
                (**self).precision()
            }
        }
    };
}

// For backends that are chosen at run time.
forward_to_pointee!(Box);
forward_to_pointee!(Arc);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_dyn_compatible() {
        fn takes(_: Option<&dyn Backend>) {}
        takes(None);
    }

    #[test]
    fn a_missing_device_says_what_is_there_and_what_to_do() {
        let mut error = BackendError::NoDevice {
            backend: "toy".to_owned(),
            wanted: "device 2".to_owned(),
            found: vec!["device 0".to_owned(), "device 1".to_owned()],
            advice: "Ask for fewer.".to_owned(),
        };
        let text = "the toy backend has no device 2; found: device 0, device 1. Ask for fewer.";
        assert_eq!(error.to_string(), text);
        if let BackendError::NoDevice { found, .. } = &mut error {
            found.clear();
        }
        assert!(error.to_string().contains("found: nothing."));
    }
}
