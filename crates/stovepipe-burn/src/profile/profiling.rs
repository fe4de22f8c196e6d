//! The settings of [`Builder::profile`](crate::Builder::profile).

use std::sync::Arc;

use crate::profile::counter::MemoryCounter;
use crate::value::boundary::Boundary;
use crate::value::side::{SideKind, SideValues, give};

/// A function that is told the name and the number of the layer that comes next, and how many
/// layers there are.
pub(crate) type Progress = dyn Fn(&str, usize, usize) + Send + Sync;

/// The settings of a measurement of layers.
///
/// A few neighbouring layers at a time run forward and backward as a stage would run them, and
/// each layer's part is timed, at each size. The times are medians over several runs, after
/// some that aren't counted. Each time lasts until the device is done.
#[derive(Clone)]
pub struct Profiling {
    pub(crate) sizes: Vec<usize>,
    pub(crate) runs: usize,
    pub(crate) warm_up: usize,
    pub(crate) together: usize,
    pub(crate) busy: usize,
    pub(crate) side: SideValues,
    pub(crate) memory: Option<Arc<dyn MemoryCounter>>,
    pub(crate) progress: Option<Arc<Progress>>,
}

impl Profiling {
    /// Measures at these sizes of a micro-batch, in samples.
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
            side: SideValues::new(),
            memory: None,
            progress: None,
        }
    }

    /// Sets the number of runs that are counted: 7 unless set, at least 1.
    #[must_use]
    pub fn runs(self, runs: usize) -> Self {
        Self { runs: runs.max(1), ..self }
    }

    /// Sets the number of runs before those that are counted: 2 unless set.
    #[must_use]
    pub fn warm_up(self, warm_up: usize) -> Self {
        Self { warm_up, ..self }
    }

    /// Sets the number of neighbouring layers that are made and run at a time: 4 unless set, at
    /// least 1.
    ///
    /// It is best as large as the number of layers that a stage will hold. A layer that runs
    /// alone, over and over, finds its parameters in the cache.
    #[must_use]
    pub fn together(self, layers: usize) -> Self {
        Self { together: layers.max(1), ..self }
    }

    /// Keeps this many other ranks busy with the same layers at the same size meanwhile: none
    /// unless set.
    ///
    /// Layers that have caches and memory to themselves are faster than they will be in a
    /// pipeline.
    #[must_use]
    pub fn busy_ranks(self, ranks: usize) -> Self {
        Self { busy: ranks, ..self }
    }

    /// Adds a value that layers ask for by this name, as
    /// [`Pipeline::side_input`](crate::Pipeline::side_input) gives it to steps.
    ///
    /// Its first axis is the batch axis.
    #[must_use]
    pub fn side_input(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        give(&mut self.side, SideKind::PerSample, name, value);
        self
    }

    /// Adds a value that is the same for all samples, as
    /// [`Pipeline::side_constant`](crate::Pipeline::side_constant) gives it to steps.
    #[must_use]
    pub fn side_constant(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        give(&mut self.side, SideKind::Constant, name, value);
        self
    }

    /// Sets the counter of the bytes that a layer keeps, and of those that it needs
    /// temporarily. By default there is none, and the bytes are unknown.
    ///
    /// If the counter can't tell peaks, forward and backward are taken to need temporarily as
    /// much as the forward leaves behind.
    ///
    /// Nothing else should run meanwhile, so that only this layer's bytes are counted. The
    /// [busy ranks](Self::busy_ranks) have ended by then.
    #[must_use]
    pub fn memory(self, counter: impl MemoryCounter + 'static) -> Self {
        Self { memory: Some(Arc::new(counter)), ..self }
    }

    /// Sets a function that is called before each layer with its name, its number from 1 on,
    /// and the number of layers.
    #[must_use]
    pub fn progress(self, progress: impl Fn(&str, usize, usize) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }
}
