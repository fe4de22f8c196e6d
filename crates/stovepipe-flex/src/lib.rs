//! The Flex backend: every rank on the processor, in a thread pool of its own.
//!
//! Flex parallelizes through rayon and uses the pool that it is called in, so a rank with `n`
//! threads computes on exactly `n` threads and never on another rank's.
//!
//! Results don't depend on their number, with one exception. Flex divides Burn's `sum()` and
//! `mean()` over 4 Mi elements or more among the threads. Losses and norms of stovepipe go around
//! them. A layer of one's own can do so with sums along an axis. Burn's optimizers `Muon`, `Lamb`
//! and `Adafactor` take such a norm of each weight. So do all that clip gradients by themselves.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use burn::tensor::Device;
use rayon::ThreadPoolBuilder;
use stovepipe_burn::{Backend, BackendError, RANK_STACK, RankThread};

/// Burn's Flex backend, with a number of threads for each rank.
///
/// ```
/// use stovepipe_burn::Backend;
/// use stovepipe_flex::Flex;
///
/// let backend = Flex::new().threads(2);
/// assert_eq!(backend.name(), "flex");
/// assert!(backend.is_deterministic());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flex {
    threads: usize,
}

impl Flex {
    /// Creates the backend with one thread for each rank.
    #[must_use]
    pub fn new() -> Self {
        Self { threads: 1 }
    }

    /// Sets the number of threads for each rank; 0 counts as 1.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1) }
    }
}

impl Default for Flex {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Flex {
    fn name(&self) -> &str {
        "flex"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Ok(vec![Device::flex()])
    }

    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        let handles = Arc::new(Mutex::new(Vec::new()));
        let started = Arc::clone(&handles);
        let pool = ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .thread_name(move |thread| format!("stovepipe-{rank}.{thread}"))
            .spawn_handler(move |thread| {
                // Any of the threads may be the one that runs the worker.
                let mut builder = std::thread::Builder::new().stack_size(RANK_STACK);
                if let Some(name) = thread.name() {
                    builder = builder.name(name.to_owned());
                }
                let handle = builder.spawn(|| thread.run())?;
                started.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
                Ok(())
            })
            .build();
        let pool = pool.map_err(|error| {
            let reason = format!("rank {rank} can't have {} threads: {error}", self.threads);
            BackendError::failed(self.name(), reason)
        })?;
        Ok(Box::new(Pool { pool, handles }))
    }

    fn is_parallel(&self, _: &Device) -> bool {
        true
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

/// A rank's thread pool, and the handles by which its threads are joined.
struct Pool {
    pool: rayon::ThreadPool,
    handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl RankThread for Pool {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        self.pool.install(worker);
        // Dropping a pool tells its threads to end, but doesn't wait for them.
        drop(self.pool);
        for handle in self.handles.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic in the worker has already come out of `install`.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn threads_of_rank_7() -> usize {
        std::fs::read_dir("/proc/self/task").map_or(0, |tasks| {
            let names =
                tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
            names.filter(|name| name.starts_with("stovepipe-7.")).count()
        })
    }

    #[test]
    fn a_rank_computes_on_its_own_threads_which_end_with_it() {
        for threads in [1, 3] {
            let thread = Flex::new().threads(threads).rank_thread(7).expect("threads");
            let (sender, seen) = std::sync::mpsc::channel();
            thread.run(Box::new(move || {
                let name = std::thread::current().name().map(str::to_owned);
                let _ = sender.send((rayon::current_num_threads(), name));
            }));
            let (count, name) = seen.recv().expect("the worker ran");
            assert_eq!(count, threads);
            assert!(name.is_some_and(|name| name.starts_with("stovepipe-7.")));
            // The system may still list a thread for a short time after it was joined.
            let mut counts = (0..1000).map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                threads_of_rank_7()
            });
            assert!(counts.any(|count| count == 0), "threads of the pool still run");
        }
    }
}
