//! Jobs that run on a rank's thread, as the rank's worker would, while the caller goes on.

use std::sync::mpsc;
use std::thread::JoinHandle;

use stovepipe_runtime::{RANK_STACK, RankThread};

/// A job that was started on a rank thread.
pub(crate) struct RankJob<R> {
    /// The thread, if the system gave one.
    thread: Option<JoinHandle<()>>,
    result: mpsc::Receiver<R>,
}

impl<R: Send + 'static> RankJob<R> {
    /// Starts a job on a rank thread.
    pub(crate) fn spawn(
        rank_thread: Box<dyn RankThread>,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Self {
        let (sender, result) = mpsc::channel();
        let worker = Box::new(move || {
            // The receiver is gone only if the caller panicked.
            let _ = sender.send(job());
        });
        let builder = std::thread::Builder::new().stack_size(RANK_STACK);
        Self { thread: builder.spawn(move || rank_thread.run(worker)).ok(), result }
    }
}

impl<R> RankJob<R> {
    /// Waits for the result, and returns `None` if the job panicked or never ran.
    pub(crate) fn join(self) -> Option<R> {
        // A rank thread that returns has run the job, or never will.
        self.thread?.join().ok()?;
        self.result.try_recv().ok()
    }
}
