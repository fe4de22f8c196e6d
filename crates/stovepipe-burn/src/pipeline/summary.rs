//! The descriptions of stages and devices that a built pipeline gives.

use stovepipe_schedule::{Rank, Stage};

/// The description of one stage of a built pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageSummary {
    /// The number of the stage.
    pub stage: Stage,
    /// The rank that runs it.
    pub rank: Rank,
    /// The names of its layers.
    pub layers: Vec<String>,
    /// The number of its parameters.
    pub parameters: usize,
    /// The name of its device.
    pub device: String,
}

/// A device that several ranks share, on which they wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedDevice {
    /// The name of the device.
    pub device: String,
    /// The ranks that share it.
    pub ranks: Vec<Rank>,
}
