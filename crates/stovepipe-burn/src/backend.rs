//! The trait that binds pipelines to devices. Its implementations are crates of their own; what they
//! must keep to is checked in `conformance`.

use std::sync::Arc;

use burn::tensor::Device;
use stovepipe_runtime::{PlainThread, RankThread};

use crate::backend::error::BackendError;
use crate::value::packet::Packet;

pub(crate) mod error;
pub(crate) mod mixed;
pub(crate) mod rank_work;

/// A provider of devices, and of threads to drive them from. Not to be confused with the type
/// parameter of earlier Burn versions: tensors choose their backend by their device.
///
/// A backend knows no schedule, and no schedule knows a backend.
///
/// # Contract
///
/// - [`name`](Self::name) and [`devices`](Self::devices) are all that must be written. The rest is what
///   Burn offers for every device, and right for eager and lazy devices alike.
/// - [`devices`](Self::devices) returns the same devices in the same order whenever it is called. A device that was
///   asked for and isn't there is an error that lists what was found and says what to install. Nothing here
///   panics, and nothing waits for a device but [`synchronize`](Self::synchronize) and, where a value must
///   pass through the host, [`receive`](Self::receive).
/// - A rank's worker runs in [`rank_thread`](Self::rank_thread), and all that is done with its device is done there: the
///   place may bring a thread pool, a number of threads, or a stream.
/// - Values and gradients are moved by [`receive`](Self::receive), on the receiving rank. No element
///   changes on the way.
/// - [`is_deterministic`](Self::is_deterministic) is a promise: the same bits for every number of stages and
///   every checkpoint policy.
///
/// [`conformance::run_all`](crate::conformance::run_all) checks it, for a backend in any crate.
///
/// # Example
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_burn::{Backend, BackendError, RankThread};
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
///         let thread = std::thread::Builder::new().name(format!("deep-{}", self.rank)).stack_size(64 << 20);
///         // Returns when the worker has: threads must have ended by then.
///         if let Ok(thread) = thread.spawn(worker) {
///             let _ = thread.join();
///         }
///     }
/// }
///
/// stovepipe_burn::conformance::run_all(DeepFlex).expect("DeepFlex keeps the contract");
/// ```
pub trait Backend: Send + Sync {
    /// The name used in command lines, errors and reports, like `flex`.
    fn name(&self) -> &str;

    /// The devices to use, at least one, without autodiff. Rank r runs on device r modulo their
    /// number, so that ranks share devices where there are too few.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoDevice`] if there is none, or one that was asked for is missing.
    fn devices(&self) -> Result<Vec<Device>, BackendError>;

    /// What a device is called in reports, errors and profiles. By default as Burn writes it.
    fn device_name(&self, device: &Device) -> String {
        let name = format!("{device:?}");
        let inner = name.strip_prefix("Device<").and_then(|name| name.strip_suffix('>'));
        inner.unwrap_or(&name).to_owned()
    }

    /// Where the worker of `rank` runs: by default on a plain thread. On devices with streams each thread
    /// has one of its own. Beside other backends it is a rank that would have the same device without them, and
    /// no two have the same.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if no such place can be had.
    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        let _ = rank;
        Ok(Box::new(PlainThread))
    }

    /// Hands work that a lazy device has queued to the device, so that it starts at once. Called after
    /// every action of a stage, on its rank's thread. By default Burn's own flush, which is free on eager
    /// devices.
    ///
    /// # Errors
    ///
    /// Whatever the device reports.
    fn flush(&self, device: &Device) -> Result<(), BackendError> {
        device.flush().map_err(|error| BackendError::failed(self.name(), error))
    }

    /// Waits until everything that was queued from this thread is done: where time is measured, never
    /// within a step.
    ///
    /// # Errors
    ///
    /// Whatever the device reports.
    fn synchronize(&self, device: &Device) -> Result<(), BackendError> {
        device.sync().map_err(|error| BackendError::failed(self.name(), error))
    }

    /// Brings a value from wherever it is to `device`, off the tape and contiguous. By default directly
    /// between devices of one kind, and through the host between others, where whole numbers and truth
    /// values take the types that the receiving device computes with.
    ///
    /// # Errors
    ///
    /// Whatever the devices report.
    fn receive(&self, value: Packet, device: &Device) -> Result<Packet, BackendError> {
        Ok(value.to_device(device))
    }

    /// Bytes that are in use on the device, where it says so. By default what Burn's allocator for the
    /// device reports.
    fn memory(&self, device: &Device) -> Option<u64> {
        Some(device.memory_pool_usage()?.bytes_in_use)
    }

    /// Whether devices queue work and do it later: timelines then say when it was queued, not when it was done.
    fn is_lazy(&self) -> bool {
        false
    }

    /// Whether ranks on this device compute at the same time, each on threads of its own, as processors let them.
    /// Ranks on others are reported to [share](crate::Pipeline::shared_devices) it.
    fn is_parallel(&self, device: &Device) -> bool {
        let _ = device;
        false
    }

    /// Whether the same operations on the same values always give the same bits, whatever else runs.
    fn is_deterministic(&self) -> bool {
        false
    }

    /// How far results may be from Flex's: the norm of the difference of two gradients, divided by the norm
    /// of either. Single precision with sums in another order stays well below the default of 1e-4.
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
