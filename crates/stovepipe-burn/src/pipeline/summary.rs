//! What a built pipeline says of itself.

use stovepipe_schedule::{Rank, Stage};

/// One stage of a built pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageSummary {
    /// The stage.
    pub stage: Stage,
    /// The rank that runs it.
    pub rank: Rank,
    /// Its layers' names.
    pub layers: Vec<String>,
    /// Its number of parameters.
    pub parameters: usize,
    /// Its device.
    pub device: String,
}

/// A device for which several ranks wait.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedDevice {
    /// The device.
    pub device: String,
    /// The ranks.
    pub ranks: Vec<Rank>,
}
