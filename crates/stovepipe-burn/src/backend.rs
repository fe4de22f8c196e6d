//! The trait that binds pipelines to devices. Its implementations are crates of their own.

use burn::tensor::Device;
use stovepipe_runtime::{Host, ThreadHost};

/// A backend has no usable device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {backend} backend has no usable device: {reason}")]
pub struct BackendError {
    /// The backend's name.
    pub backend: String,
    /// What was looked for, what was found, and what to do.
    pub reason: String,
}

/// A provider of devices, and of threads to drive them from. Not to be confused with the type
/// parameter of earlier Burn versions: tensors choose their backend by their device.
///
/// Only [`name`](Self::name) and [`devices`](Self::devices) are required. A backend knows no schedule,
/// and no schedule knows a backend.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_burn::{Backend, BackendError};
///
/// /// All stages on Burn's Flex backend, sharing the process's threads.
/// struct SharedFlex;
///
/// impl Backend for SharedFlex {
///     fn name(&self) -> &str {
///         "shared-flex"
///     }
///
///     fn devices(&self) -> Result<Vec<Device>, BackendError> {
///         Ok(vec![Device::flex()])
///     }
/// }
/// ```
pub trait Backend: Send + Sync {
    /// The name used in command lines, errors and reports, like `flex`.
    fn name(&self) -> &str;

    /// The devices to use, at least one, without autodiff. Rank r runs on device r modulo their
    /// number.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if there is none; it says what was looked for. Must not panic.
    fn devices(&self) -> Result<Vec<Device>, BackendError>;

    /// Where the worker of `rank` runs: by default on a plain thread.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if no such place can be had.
    fn host(&self, rank: usize) -> Result<Box<dyn Host>, BackendError> {
        let _ = rank;
        Ok(Box::new(ThreadHost))
    }

    /// Hands work that a lazy device has queued to the device, so that it starts at once. Called after
    /// every action of a stage. By default Burn's own flush, which is free on eager devices.
    ///
    /// # Errors
    ///
    /// Whatever the device reports.
    fn flush(&self, device: &Device) -> Result<(), BackendError> {
        device.flush().map_err(|error| BackendError {
            backend: self.name().to_owned(),
            reason: error.to_string(),
        })
    }

    /// Whether the same operations on the same values always give the same bits.
    fn is_deterministic(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_dyn_compatible() {
        fn takes(_: Option<&dyn Backend>) {}
        takes(None);
    }
}
