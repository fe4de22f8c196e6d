//! Jobs that run on a rank's thread, as the rank's worker would, while the caller goes on.

use std::sync::mpsc;
use std::thread::JoinHandle;

use stovepipe_runtime::RankThread;

/// A job that was started on a rank thread.
pub(crate) struct RankJob<R> {
    thread: JoinHandle<()>,
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
        Self { thread: std::thread::spawn(move || rank_thread.run(worker)), result }
    }
}

impl<R> RankJob<R> {
    /// Waits for the result, and returns `None` if the job panicked.
    pub(crate) fn join(self) -> Option<R> {
        let result = self.result.recv().ok();
        self.thread.join().ok()?;
        result
    }
}
