//! One rank as it is given to the workers: its stages, its thread, and what its values pass
//! through.

use std::sync::Arc;
use std::time::Duration;

use stovepipe_schedule::Stage;

use crate::compute::StageCompute;
use crate::in_flight::ArrivalHook;

/// The bytes that the stack of a rank's thread may grow to.
///
/// Burn's backward recurses once for each operation on the longest way through a tape, so that a
/// long recurrence needs far more than a thread has by default. The bytes are addresses only: they
/// take memory when they are first used.
pub const RANK_STACK: usize = if cfg!(target_pointer_width = "64") { 256 << 20 } else { 16 << 20 };

/// Where a rank's worker runs: it may bring a thread pool or a device context.
pub trait RankThread: Send {
    /// Runs the worker to its end. Called on the rank's own thread, which ends when it returns.
    /// Threads that this started for the worker should have ended by then too.
    ///
    /// The rank's own thread has a stack of [`RANK_STACK`] bytes. A thread that this runs the
    /// worker on should have as much.
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>);

    /// Returns the time within which [`run`](Self::run) starts the worker, and within which it
    /// returns after the worker has ended: a minute by default.
    ///
    /// A rank whose worker doesn't start in time is an error, and a thread that doesn't end in time
    /// is left alone, so that nobody waits for ever.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// Runs the worker right on the rank's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlainThread;

impl RankThread for PlainThread {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        worker();
    }
}

/// The stages of one rank, and where they run.
pub struct RankSetup<C: StageCompute> {
    pub(crate) stages: Vec<(Stage, C)>,
    pub(crate) thread: Box<dyn RankThread>,
    pub(crate) arrival_hook: Option<ArrivalHook<C::Value>>,
}

impl<C: StageCompute> RankSetup<C> {
    /// A rank with these stages, in any order, which runs on `thread`.
    #[must_use]
    pub fn new(stages: Vec<(Stage, C)>, thread: Box<dyn RankThread>) -> Self {
        Self { stages, thread, arrival_hook: None }
    }

    /// Passes every value that the rank receives through `hook`, before any stage sees it.
    ///
    /// The hook runs on the rank's own thread, once for each message from another rank. Values that
    /// go from one stage of the rank to another don't arrive, and don't pass it. A hook that panics
    /// fails the step, in the phase [`Arrival`](crate::StepPhase::Arrival) of the stage that needs
    /// the value.
    ///
    /// A rehearsal of one rank copies into memory of its own what it receives:
    ///
    /// ```
    /// use stovepipe_runtime::{PlainThread, RankSetup, StageCompute};
    /// use stovepipe_schedule::Stage;
    ///
    /// fn rehearsed<C>(stages: Vec<(Stage, C)>) -> RankSetup<C>
    /// where
    ///     C: StageCompute<Value = Vec<f32>>,
    /// {
    ///     RankSetup::new(stages, Box::new(PlainThread)).with_arrival_hook(|value| value.clone())
    /// }
    /// ```
    #[must_use]
    pub fn with_arrival_hook(
        self,
        hook: impl Fn(C::Value) -> C::Value + Send + Sync + 'static,
    ) -> Self {
        Self { arrival_hook: Some(Arc::new(hook)), ..self }
    }
}
