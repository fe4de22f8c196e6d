//! Runs a check on all ranks of a group, each on a thread of its own, and turns a hang into an
//! error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;

use crate::conformance::endpoint::{Endpoint, Verdict};
use crate::transport::Transport;

/// Runs `check` on every endpoint, each on a thread of its own, from step 0 up. `endpoints`
/// are in rank order.
///
/// A rank that isn't done within `limit` is reported, and its thread is left running. An
/// endpoint is dropped when all ranks are done, or at once if its check fails.
///
/// ```
/// use std::time::Duration;
/// use stovepipe_transport::{InProcess, conformance};
///
/// let limit = Duration::from_secs(60);
/// conformance::on_threads(InProcess::group(2), limit, conformance::ring).expect("a ring");
/// ```
///
/// # Errors
///
/// Every rank that failed, panicked or hung.
pub fn on_threads<T, F>(endpoints: Vec<T>, limit: Duration, check: F) -> Verdict
where
    T: Transport<Vec<u8>> + 'static,
    F: AsyncFn(&Endpoint, u64) -> Verdict + Send + Sync + 'static,
{
    let ranks = endpoints.len();
    let check = Arc::new(check);
    let (report, reports) = mpsc::channel();
    for (rank, endpoint) in endpoints.into_iter().enumerate() {
        let (check, report) = (Arc::clone(&check), report.clone());
        let act = move || {
            let verdict = one_rank(&endpoint, rank, ranks, check.as_ref());
            let kept = verdict.is_ok().then_some(endpoint);
            // The collector may have given up on this rank.
            report.send((rank, verdict, kept)).ok();
        };
        thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(act)
            .map_err(|error| format!("no thread for rank {rank}: {error}"))?;
    }
    collect(ranks, limit, &reports)
}

fn one_rank<F>(endpoint: &Endpoint, rank: usize, ranks: usize, check: &F) -> Verdict
where
    F: AsyncFn(&Endpoint, u64) -> Verdict,
{
    let (says_rank, says_ranks) = (endpoint.rank(), endpoint.ranks());
    if (says_rank, says_ranks) != (rank, ranks) {
        return Err(format!(
            "the endpoint calls itself rank {says_rank} of {says_ranks}, it is {rank} of {ranks}"
        ));
    }
    catch_unwind(AssertUnwindSafe(|| block_on(check(endpoint, 0))))
        .unwrap_or_else(|panic| Err(format!("panicked: {}", message(panic.as_ref()))))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

type Report<T> = (usize, Verdict, Option<T>);

fn collect<T>(ranks: usize, limit: Duration, reports: &mpsc::Receiver<Report<T>>) -> Verdict {
    let deadline = Instant::now() + limit;
    let mut kept = Vec::new();
    let mut verdicts: Vec<Option<Verdict>> = vec![None; ranks];
    while verdicts.contains(&None) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((rank, verdict, endpoint)) = reports.recv_timeout(left) else {
            break;
        };
        verdicts[rank] = Some(verdict);
        kept.extend(endpoint);
    }
    let broken = verdicts.into_iter().enumerate().filter_map(|(rank, verdict)| match verdict {
        Some(Ok(())) => None,
        Some(Err(broken)) => Some(format!("rank {rank}: {broken}")),
        None => Some(format!("rank {rank}: not done within {limit:?}, so it hangs")),
    });
    let broken: Vec<String> = broken.collect();
    if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
}
