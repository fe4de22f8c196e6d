//! Work where a rank would do it: on its backend's host, on a thread of its own.

use std::sync::mpsc;
use std::thread::JoinHandle;

use stovepipe_runtime::RankThread;

/// Work that was started.
pub(crate) struct Started<R> {
    thread: JoinHandle<()>,
    result: mpsc::Receiver<R>,
}

pub(crate) fn spawn<R: Send + 'static>(
    thread: Box<dyn RankThread>,
    work: impl FnOnce() -> R + Send + 'static,
) -> Started<R> {
    let (sender, result) = mpsc::channel();
    let worker = Box::new(move || {
        // Whoever waits for it has gone only if the caller panicked.
        let _ = sender.send(work());
    });
    Started { thread: std::thread::spawn(move || thread.run(worker)), result }
}

impl<R> Started<R> {
    /// Waits for the result; there is none after a panic.
    pub(crate) fn finish(self) -> Option<R> {
        let result = self.result.recv().ok();
        self.thread.join().ok()?;
        result
    }
}
