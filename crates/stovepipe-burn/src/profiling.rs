//! How a model is measured: the settings of [`Builder::profile`](crate::Builder::profile).

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::Device;

use crate::boundary::into_packet;
use crate::cell::free_abandoned;
use crate::part::Packet;
use crate::{Backend, BackendError, Boundary};

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

/// Is told the layer that comes next, and how many there are.
pub(crate) type Progress = dyn Fn(&str, usize, usize) + Send + Sync;

/// How layers are measured.
///
/// A few neighbouring layers at a time are run forward and backward as a stage would run them, and each
/// layer's part is timed, at each size. The times are medians over several runs, after some that aren't
/// counted, each until the device is done.
#[derive(Clone)]
pub struct Profiling {
    pub(crate) sizes: Vec<usize>,
    pub(crate) runs: usize,
    pub(crate) warm_up: usize,
    pub(crate) together: usize,
    pub(crate) busy: usize,
    pub(crate) side: BTreeMap<String, Packet>,
    pub(crate) memory: Option<Arc<dyn MemoryCounter>>,
    pub(crate) progress: Option<Arc<Progress>>,
}

impl Profiling {
    /// At these sizes of a micro-batch, in samples.
    #[must_use]
    pub fn new(sizes: impl Into<Vec<usize>>) -> Self {
        let mut sizes = sizes.into();
        sizes.sort_unstable();
        sizes.dedup();
        Self {
            sizes,
            runs: 7,
            warm_up: 2,
            together: 4,
            busy: 0,
            side: BTreeMap::new(),
            memory: None,
            progress: None,
        }
    }

    /// How many runs are counted: 7 unless said otherwise, at least 1.
    #[must_use]
    pub fn runs(self, runs: usize) -> Self {
        Self { runs: runs.max(1), ..self }
    }

    /// How many runs come before them: 2 unless said otherwise.
    #[must_use]
    pub fn warm_up(self, warm_up: usize) -> Self {
        Self { warm_up, ..self }
    }

    /// How many neighbouring layers are made and run at a time: 4 unless said otherwise, at least 1;
    /// best as many as a stage will hold. A layer that runs alone, over and over, finds its parameters in
    /// the cache.
    #[must_use]
    pub fn together(self, layers: usize) -> Self {
        Self { together: layers.max(1), ..self }
    }

    /// Keeps this many further ranks busy with the same layers at the same size meanwhile. Layers that have caches and
    /// memory to themselves are faster than they will be in a pipeline.
    #[must_use]
    pub fn busy_ranks(self, ranks: usize) -> Self {
        Self { busy: ranks, ..self }
    }

    /// A value that layers ask for by this name, as
    /// [`Pipeline::side_input`](crate::Pipeline::side_input) gives it to steps.
    #[must_use]
    pub fn side_input(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        self.side.insert(name.into(), into_packet(value));
        self
    }

    /// Where the bytes are read that a layer keeps, and those that it needs for a moment: by default
    /// nowhere, and then they are unknown. If the counter can't tell peaks, what forward and backward need
    /// for a moment is taken to be as much as the forward leaves behind. Nothing else should run meanwhile, so that only this layer's
    /// bytes are counted; the [busy ranks](Self::busy_ranks) have ended by then.
    #[must_use]
    pub fn memory(self, counter: impl MemoryCounter + 'static) -> Self {
        Self { memory: Some(Arc::new(counter)), ..self }
    }

    /// Is called before each layer with its name, its number from 1 on, and how many there are.
    #[must_use]
    pub fn progress(self, progress: impl Fn(&str, usize, usize) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }
}
