//! The ranks that there are: speed, memory, links.

/// Ranks in a row, and the links between neighbours.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    pub(crate) ranks: usize,
    pub(crate) memory: Option<Vec<u64>>,
    pub(crate) speeds: Vec<f64>,
    pub(crate) latency: f64,
    pub(crate) bandwidth: f64,
}

impl Cluster {
    /// This many ranks, all as fast as the device that was measured, without a limit of memory and
    /// with links that take no time.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        let (latency, bandwidth) = (0.0, f64::INFINITY);
        Self { ranks, memory: None, speeds: vec![1.0; ranks], latency, bandwidth }
    }

    /// The bytes that each rank has.
    #[must_use]
    pub fn memory(mut self, bytes: impl Into<Vec<u64>>) -> Self {
        self.memory = Some(bytes.into());
        self
    }

    /// The relative speed of each rank: one of speed 2 needs half the time that was measured.
    #[must_use]
    pub fn speeds(mut self, speeds: impl Into<Vec<f64>>) -> Self {
        self.speeds = speeds.into();
        self
    }

    /// The links' latency in seconds and their bandwidth in bytes per second.
    #[must_use]
    pub fn link(mut self, latency: f64, bandwidth: f64) -> Self {
        (self.latency, self.bandwidth) = (latency, bandwidth);
        self
    }

    /// With so many more bytes on every rank.
    pub(crate) fn with_more_memory(mut self, more: u64) -> Self {
        for bytes in self.memory.iter_mut().flatten() {
            *bytes = bytes.saturating_add(more);
        }
        self
    }

    /// With so many ranks, the further ones like the last.
    pub(crate) fn with_ranks(mut self, ranks: usize) -> Self {
        self.speeds.resize(ranks, self.speeds.last().copied().unwrap_or(1.0));
        if let Some(memory) = &mut self.memory {
            memory.resize(ranks, memory.last().copied().unwrap_or(0));
        }
        Self { ranks, ..self }
    }

    /// The fault in it, if there is one.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        let each =
            |found: usize| format!("there are {found} for {} ranks: give one for each", self.ranks);
        let positive = |v: f64| v > 0.0 && !v.is_nan();
        if self.ranks == 0 {
            Some(("ranks", "there are none: give at least 1".to_owned()))
        } else if self.memory.as_ref().is_some_and(|memory| memory.len() != self.ranks) {
            Some(("memory", each(self.memory.as_ref().map_or(0, Vec::len))))
        } else if self.speeds.len() != self.ranks {
            Some(("speeds", each(self.speeds.len())))
        } else if let Some(speed) = self.speeds.iter().find(|s| !positive(**s) || s.is_infinite()) {
            Some(("speeds", format!("{speed} isn't one: give finite numbers above 0")))
        } else if !self.latency.is_finite() || self.latency < 0.0 {
            Some(("latency", format!("{} s isn't one: give at least 0", self.latency)))
        } else if !positive(self.bandwidth) {
            Some(("bandwidth", format!("{} bytes/s isn't one: give more than 0", self.bandwidth)))
        } else {
            None
        }
    }
}
