//! The thread of a rank as its worker needs it: it must run the worker, and end after it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use stovepipe_schedule::Rank;

use crate::error::StepError;
use crate::setup::{RANK_STACK, RankThread};

/// An event on a rank's thread.
enum Event {
    /// The worker runs.
    Started,
    /// [`RankThread::run`] has returned or panicked.
    Returned,
}

/// A rank's thread, seen from the thread that waits for it.
pub(crate) struct StartedThread {
    rank: Rank,
    limit: Duration,
    events: mpsc::Receiver<Event>,
    handle: Option<JoinHandle<()>>,
}

impl StartedThread {
    /// Starts the thread, which is to run `worker`.
    pub(crate) fn spawn(
        rank: Rank,
        thread: Box<dyn RankThread>,
        worker: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StepError> {
        let limit = thread.time_limit();
        let (sender, events) = mpsc::channel();
        let started = sender.clone();
        let worker = Box::new(move || {
            // Whoever started it may have given it up.
            let _ = started.send(Event::Started);
            worker();
        });
        let returned = Returned(sender);
        let builder = std::thread::Builder::new().name(format!("stovepipe-{rank}"));
        let handle = builder.stack_size(RANK_STACK).spawn(move || {
            let _returned = returned;
            thread.run(worker);
        });
        let handle = handle.map_err(|source| StepError::NoThread { rank, source })?;
        Ok(Self { rank, limit, events, handle: Some(handle) })
    }

    /// Waits until the worker runs. A thread that takes too long is given up.
    pub(crate) fn wait_for_start(&mut self) -> Result<(), StepError> {
        let reason = match self.events.recv_timeout(self.limit) {
            Ok(Event::Started) => return Ok(()),
            Ok(Event::Returned) | Err(RecvTimeoutError::Disconnected) => {
                if let Some(handle) = self.handle.take() {
                    // If it panicked, its message stands above.
                    let _ = handle.join();
                }
                "its thread ended without running it".to_owned()
            }
            Err(RecvTimeoutError::Timeout) => {
                self.handle = None;
                format!("its thread didn't run it within {:?}", self.limit)
            }
        };
        Err(StepError::NotStarted { rank: self.rank, reason })
    }

    /// Waits for the end of the thread after that of the worker. A thread that takes too long is
    /// given up.
    pub(crate) fn join(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        loop {
            match self.events.recv_timeout(self.limit) {
                Ok(Event::Started) => {}
                Ok(Event::Returned) | Err(RecvTimeoutError::Disconnected) => {
                    // A worker that panicked has already been reported.
                    let _ = handle.join();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (rank, limit) = (self.rank, self.limit);
                    tracing::warn!(%rank, ?limit, "the rank's thread doesn't end: it is left alone");
                    return;
                }
            }
        }
    }
}

/// Says when it is dropped that the thread is about to end.
struct Returned(mpsc::Sender<Event>);

impl Drop for Returned {
    fn drop(&mut self) {
        // Whoever started the thread may have given it up.
        let _ = self.0.send(Event::Returned);
    }
}
