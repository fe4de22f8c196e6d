//! A step as a rank is asked to run it, and the report of what it did.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use stovepipe_schedule::{Program, Span, Stage};

use crate::agreement::Agreement;

/// One step, as a rank is asked to do its part of it.
#[derive(Debug)]
pub struct Job<'a, I> {
    /// Number of the step; must grow from call to call.
    pub step: u64,
    /// The program, the same on every rank.
    pub program: &'a Program,
    /// The batch, the same on every rank.
    pub input: &'a Arc<I>,
    /// The instant that times count from, the same on every rank of a process. Where ranks compare
    /// [`agreement`](Self::agreement), the instant of that instead.
    pub epoch: Instant,
    /// The facts to compare with the other ranks before the first action, if they are other
    /// processes.
    pub agreement: Option<&'a Agreement>,
}

/// The report of a rank on one step.
#[derive(Debug)]
pub struct RankReport<O> {
    /// Every action with its times in seconds.
    pub spans: Vec<Span>,
    /// When the update ran.
    pub update: Option<Range<f64>>,
    /// The output of each of the rank's stages.
    pub outputs: Vec<(Stage, O)>,
    /// The reports of all stages, in stage order.
    pub reports: Vec<Vec<u8>>,
}
