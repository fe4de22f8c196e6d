//! Helpers that the checks share: operations held in flight, ways to ask for an outcome,
//! and the barrier at a step's end. No rule of the contract is checked here.

use std::fmt::Debug;
use std::task::{Context, Waker};

use futures::StreamExt;
use futures::future::{BoxFuture, poll_immediate};
use futures::stream::FuturesUnordered;

use crate::conformance::endpoint::{Endpoint, Verdict};
use crate::error::TransportError;
use crate::tag::{Direction, Tag};

pub(super) type Outcome<T> = Result<T, TransportError>;

/// Operations in flight. Each is polled when it is added, and afterwards only when its own
/// waker was woken, as an executor with many tasks would do.
pub(super) struct Posted<'a, T>(FuturesUnordered<BoxFuture<'a, Outcome<T>>>);

impl<'a, T: Send + 'a> Posted<'a, T> {
    /// Polls all `operations` once, whatever comes of it.
    pub(super) async fn start(
        operations: impl IntoIterator<Item = BoxFuture<'a, Outcome<T>>>,
    ) -> Self {
        let mut early = Vec::new();
        let mut posted: FuturesUnordered<_> = operations.into_iter().collect();
        while let Some(Some(outcome)) = poll_immediate(posted.next()).await {
            early.push(outcome);
        }
        for outcome in early {
            posted.push(Box::pin(std::future::ready(outcome)) as BoxFuture<'a, Outcome<T>>);
        }
        Self(posted)
    }

    /// Polls `operation` once, with a waker that nobody listens to and then with a real
    /// one, and insists that it waits.
    pub(super) async fn wait_for(
        what: &str,
        mut operation: BoxFuture<'a, Outcome<T>>,
    ) -> Result<Self, String> {
        let first = operation.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let mut posted: FuturesUnordered<_> = std::iter::once(operation).collect();
        if first || poll_immediate(posted.next()).await.is_some() {
            return Err(format!("{what} should wait, but is done"));
        }
        Ok(Self(posted))
    }

    /// Awaits one operation.
    pub(super) async fn outcome(mut self) -> Result<Outcome<T>, String> {
        let outcome = self.0.next().await;
        outcome.ok_or_else(|| "no operation is in flight".to_string())
    }

    /// Awaits all operations, which must succeed.
    pub(super) async fn all(mut self, what: &str) -> Verdict {
        while let Some(outcome) = self.0.next().await {
            outcome.map_err(|error| format!("{what} failed: {error}"))?;
        }
        Ok(())
    }
}

pub(super) fn tag(step: u64, micro_batch: usize, from: usize, to: usize) -> Tag {
    Tag {
        step,
        micro_batch: micro_batch as u32,
        from_stage: from as u32,
        to_stage: to as u32,
        direction: Direction::Forward,
    }
}

/// This rank, the one before it and the one after it, in a ring.
pub(super) fn ring_of(endpoint: &Endpoint) -> (usize, usize, usize) {
    let (me, ranks) = (endpoint.rank(), endpoint.ranks());
    (me, (me + ranks - 1) % ranks, (me + 1) % ranks)
}

/// Bytes that differ between any two tags of a check.
pub(super) fn payload(tag: Tag) -> Vec<u8> {
    tag.to_string().into_bytes()
}

/// Receives what was sent with `tag` and carries its [`payload`].
pub(super) async fn receive(endpoint: &Endpoint, from: usize, tag: Tag) -> Verdict {
    arrived(endpoint.recv(from, tag).await, tag)
}

pub(super) fn arrived(outcome: Outcome<Vec<u8>>, tag: Tag) -> Verdict {
    let value = outcome.map_err(|error| format!("the receive of {tag} failed: {error}"))?;
    if value == payload(tag) {
        return Ok(());
    }
    let value = String::from_utf8_lossy(&value);
    Err(format!("the receive of {tag} returned the value of {value}"))
}

pub(super) fn refused<T>(
    what: &str,
    outcome: Outcome<T>,
    expected: impl FnOnce(&TransportError) -> bool,
    name: &str,
) -> Verdict {
    match outcome {
        Err(error) if expected(&error) => Ok(()),
        Err(error) => Err(format!("{what} should fail with {name}, but failed with: {error}")),
        Ok(_) => Err(format!("{what} should fail with {name}, but succeeded")),
    }
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, got: &T, expected: &T) -> Verdict {
    if got == expected {
        Ok(())
    } else {
        Err(format!("{what} is {got:?}, it should be {expected:?}"))
    }
}

/// Waits until all ranks are here.
pub(super) async fn barrier(endpoint: &Endpoint, step: u64, round: u32) -> Verdict {
    let here = endpoint.all_gather(step, round, Vec::new()).await;
    here.map(drop)
        .map_err(|error| format!("the barrier in round {round} of step {step} failed: {error}"))
}

/// Ends a step that went well, once all ranks have come to its end: so ranks are never
/// more than one step apart.
pub(super) async fn close(endpoint: &Endpoint, step: u64) -> Verdict {
    barrier(endpoint, step, u32::MAX).await?;
    endpoint.end_step(step);
    Ok(())
}
