//! Counting the bytes that are allocated.

use std::sync::Arc;

use burn::tensor::Device;

use crate::autodiff::tape::free_abandoned;
use crate::backend::Backend;
use crate::backend::error::BackendError;

/// Counts the bytes that are allocated, as on the processor a program's allocator can. With the feature
/// `peak-alloc` the allocator of that crate is one.
///
/// ```
/// use stovepipe_burn::{Backend, MemoryCounter};
///
/// /// What a backend's device says.
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
    /// Allocated now.
    fn live_bytes(&self) -> u64;

    /// The most that was allocated at once since the last [reset](Self::reset_peak). By default nothing, for
    /// those who can't tell.
    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    /// Begins to look for the peak anew.
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

/// What a counter counts on a device, from some moment on.
pub(crate) struct Count {
    backend: Arc<dyn Backend>,
    device: Device,
    counter: Arc<dyn MemoryCounter>,
    before: u64,
}

impl Count {
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

    /// How much more there is than at first.
    pub(crate) fn more(&self) -> Result<u64, BackendError> {
        self.backend.synchronize(&self.device)?;
        Ok(self.counter.live_bytes().saturating_sub(self.before))
    }

    /// How much more there was at most since the last peak, of which this is the end; nothing if the counter
    /// can't tell.
    pub(crate) fn most(&self) -> Result<Option<u64>, BackendError> {
        self.backend.synchronize(&self.device)?;
        let most = self.counter.peak_bytes().map(|peak| peak.saturating_sub(self.before));
        self.counter.reset_peak();
        Ok(most)
    }
}
