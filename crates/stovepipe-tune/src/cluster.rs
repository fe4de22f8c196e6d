//! The ranks that there are: speed, memory, nodes, links.

use crate::messages::MessageCosts;

/// A link between two ranks: seconds, and bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wire {
    pub(crate) latency: f64,
    pub(crate) bandwidth: f64,
}

/// Ranks in a row, the nodes that they are on, and the links between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    pub(crate) ranks: usize,
    /// One value for all ranks, or one for each.
    memory: Option<Vec<u64>>,
    /// One value for all ranks, or one for each.
    speeds: Vec<f64>,
    link: Wire,
    /// Between ranks of different nodes, if that is another.
    between: Option<Wire>,
    ranks_per_node: Option<usize>,
    messages: MessageCosts,
}

impl Cluster {
    /// The most ranks that the search is made for.
    pub const MAX_RANKS: usize = 1 << 14;

    /// This many ranks, all as fast as the device that was measured, without a limit of memory, on
    /// one node, with links and messages that take no time.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            memory: None,
            speeds: vec![1.0],
            link: Wire { latency: 0.0, bandwidth: f64::INFINITY },
            between: None,
            ranks_per_node: None,
            messages: MessageCosts::default(),
        }
    }

    /// The bytes that each rank has: one value for all, or one for each.
    #[must_use]
    pub fn memory(mut self, bytes: impl Into<Vec<u64>>) -> Self {
        self.memory = Some(bytes.into());
        self
    }

    /// The relative speed of the ranks, one value for all or one for each: a rank of speed 2 needs
    /// half the time that was measured.
    #[must_use]
    pub fn speeds(mut self, speeds: impl Into<Vec<f64>>) -> Self {
        self.speeds = speeds.into();
        self
    }

    /// The links' latency in seconds and their bandwidth in bytes per second; those within nodes,
    /// if ranks are on [several](Self::nodes).
    #[must_use]
    pub fn link(mut self, latency: f64, bandwidth: f64) -> Self {
        self.link = Wire { latency, bandwidth };
        self
    }

    /// Puts so many consecutive ranks on each node. Between nodes links have this latency in
    /// seconds and this bandwidth in bytes per second, which the ranks of a node share.
    #[must_use]
    pub fn nodes(mut self, ranks_per_node: usize, latency: f64, bandwidth: f64) -> Self {
        self.ranks_per_node = Some(ranks_per_node);
        self.between = Some(Wire { latency, bandwidth });
        self
    }

    /// The time that messages take of their ranks themselves, such as for encoding and decoding
    /// values.
    #[must_use]
    pub fn messages(mut self, costs: MessageCosts) -> Self {
        self.messages = costs;
        self
    }

    /// The time that messages take of their ranks.
    pub(crate) fn message_costs(&self) -> MessageCosts {
        self.messages
    }

    /// The relative speed of a rank.
    pub(crate) fn speed(&self, rank: usize) -> f64 {
        self.speeds[if self.speeds.len() == 1 { 0 } else { rank }]
    }

    /// The bytes that the first ranks have, if that is limited.
    pub(crate) fn capacities(&self, ranks: usize) -> Option<Vec<u64>> {
        let memory = self.memory.as_ref()?;
        let of_rank = |rank: usize| memory[if memory.len() == 1 { 0 } else { rank }];
        Some((0..ranks).map(of_rank).collect())
    }

    pub(crate) fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// The node of a rank, if there are several.
    pub(crate) fn node(&self, rank: usize) -> Option<usize> {
        self.ranks_per_node.map(|ranks| rank / ranks)
    }

    /// The link between two ranks.
    pub(crate) fn wire(&self, from: usize, to: usize) -> Wire {
        match self.between {
            Some(between) if self.node(from) != self.node(to) => between,
            _ => self.link,
        }
    }

    /// The longest latency that a message between any of the first ranks has.
    pub(crate) fn worst_latency(&self, ranks: usize) -> f64 {
        match ranks {
            0 | 1 => 0.0,
            _ => self.wire(0, ranks - 1).latency.max(self.link.latency),
        }
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
        if self.speeds.len() > 1 {
            self.speeds.resize(ranks, self.speeds.last().copied().unwrap_or(1.0));
        }
        if let Some(memory) = self.memory.as_mut().filter(|memory| memory.len() > 1) {
            memory.resize(ranks, memory.last().copied().unwrap_or(0));
        }
        Self { ranks, ..self }
    }

    /// The fault in it, if there is one.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        let each = |found: usize| {
            format!("there are {found} for {} ranks: give one for all, or one for each", self.ranks)
        };
        let fits = |count: usize| count == 1 || count == self.ranks;
        let positive = |v: f64| v > 0.0 && !v.is_nan();
        let wires = [("latency", "bandwidth", Some(self.link))];
        let wires = wires.into_iter().chain([(
            "latency between nodes",
            "bandwidth between nodes",
            self.between,
        )]);
        if self.ranks == 0 {
            return Some(("ranks", "there are none: give at least 1".to_owned()));
        }
        if self.ranks > Self::MAX_RANKS {
            let most = Self::MAX_RANKS;
            let reason = format!("{} are more than the search is made for: {most}", self.ranks);
            return Some(("ranks", reason));
        }
        if let Some(memory) = self.memory.as_ref().filter(|memory| !fits(memory.len())) {
            return Some(("memory", each(memory.len())));
        }
        if !fits(self.speeds.len()) {
            return Some(("speeds", each(self.speeds.len())));
        }
        if let Some(speed) = self.speeds.iter().find(|s| !positive(**s) || s.is_infinite()) {
            return Some(("speeds", format!("{speed} isn't one: give finite numbers above 0")));
        }
        if self.ranks_per_node == Some(0) {
            return Some(("nodes", "there are none on each: give at least 1".to_owned()));
        }
        for (latency, bandwidth, wire) in wires {
            let Some(wire) = wire else { continue };
            if !wire.latency.is_finite() || wire.latency < 0.0 {
                let reason = format!("{} s isn't one: give at least 0", wire.latency);
                return Some((latency, reason));
            }
            if !positive(wire.bandwidth) {
                let reason = format!("{} bytes/s isn't one: give more than 0", wire.bandwidth);
                return Some((bandwidth, reason));
            }
        }
        self.messages.fault().map(|reason| ("messages", reason))
    }
}
