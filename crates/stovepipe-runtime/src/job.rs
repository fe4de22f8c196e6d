//! What a rank is asked to do in one step, and what it says that it did.

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
    /// What to compare with the other ranks before the first action, if they are other processes.
    pub agreement: Option<&'a Agreement>,
}

/// What a rank did in one step.
#[derive(Debug)]
pub struct RankReport<O> {
    /// Every action with its times in seconds.
    pub spans: Vec<Span>,
    /// When the update ran.
    pub update: Option<Range<f64>>,
    /// What each of the rank's stages hands back.
    pub outputs: Vec<(Stage, O)>,
    /// What all stages reported, in stage order.
    pub reports: Vec<Vec<u8>>,
}
