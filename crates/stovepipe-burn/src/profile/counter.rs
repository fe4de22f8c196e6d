//! Counters of the bytes that are allocated.

use std::sync::Arc;

use burn::tensor::Device;

use crate::autodiff::tape::free_abandoned;
use crate::backend::Backend;
use crate::backend::error::BackendError;

/// Counts the bytes that are allocated. On the processor the allocator of a program can do
/// that.
///
/// With the feature `peak-alloc` the allocator of that crate is one.
///
/// ```
/// use stovepipe_burn::{Backend, MemoryCounter};
///
/// /// A counter that asks a backend's device.
/// struct OnDevice<B>(B);
///
/// impl<B: Backend> MemoryCounter for OnDevice<B> {
///     fn live_bytes(&self) -> u64 {
///         let devices = self.0.devices().unwrap_or_default();
///         devices.first().and_then(|device| self.0.memory(device)).unwrap_or(0)
///     }
/// }
/// ```
pub trait MemoryCounter: Send + Sync {
    /// Returns the bytes that are allocated now.
    fn live_bytes(&self) -> u64;

    /// Returns the most bytes that were allocated at once since the last
    /// [reset](Self::reset_peak).
    ///
    /// By default none, for counters that can't tell.
    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    /// Forgets the peak: from now on it is looked for anew.
    fn reset_peak(&self) {}
}

/// Counts once it is the program's `#[global_allocator]`.
#[cfg(feature = "peak-alloc")]
impl MemoryCounter for peak_alloc::PeakAlloc {
    fn live_bytes(&self) -> u64 {
        self.current_usage() as u64
    }

    fn peak_bytes(&self) -> Option<u64> {
        Some(self.peak_usage() as u64)
    }

    fn reset_peak(&self) {
        self.reset_peak_usage();
    }
}

/// The bytes that a counter counts on a device, from some moment on.
pub(crate) struct Count {
    backend: Arc<dyn Backend>,
    device: Device,
    counter: Arc<dyn MemoryCounter>,
    before: u64,
}

impl Count {
    /// Begins to count, once the device has done what is queued and what is kept for nothing
    /// has been freed.
    pub(crate) fn begin(
        backend: &Arc<dyn Backend>,
        device: &Device,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<Self, BackendError> {
        free_abandoned(device);
        let (backend, device) = (Arc::clone(backend), device.clone());
        let mut count = Self { backend, device, counter: Arc::clone(counter), before: 0 };
        count.backend.synchronize(&count.device)?;
        count.counter.reset_peak();
        count.before = count.counter.live_bytes();
        Ok(count)
    }

    /// Returns the bytes by which the memory in use has grown since the beginning.
    pub(crate) fn more(&self) -> Result<u64, BackendError> {
        self.backend.synchronize(&self.device)?;
        Ok(self.counter.live_bytes().saturating_sub(self.before))
    }

    /// Returns the bytes by which the memory in use had grown at most, since the last call or
    /// the beginning.
    ///
    /// None if the counter can't tell peaks.
    pub(crate) fn most(&self) -> Result<Option<u64>, BackendError> {
        self.backend.synchronize(&self.device)?;
        let most = self.counter.peak_bytes().map(|peak| peak.saturating_sub(self.before));
        self.counter.reset_peak();
        Ok(most)
    }
}
