//! How a model is measured: the settings of [`Builder::profile`](crate::Builder::profile).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::profile::counter::MemoryCounter;
use crate::value::boundary::{Boundary, into_packet};
use crate::value::packet::Packet;

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
