//! Checks of a step that one rank ends for all. They allow that the news travels: only
//! operations that can't succeed are expected to fail at once.

use futures::future::try_join;

use crate::conformance::endpoint::{Endpoint, Verdict};
use crate::conformance::messages::ring;
use crate::conformance::posted::{
    Outcome, Posted, arrived, barrier, close, payload, receive, refused, ring_of, tag,
};
use crate::error::TransportError;

fn aborted<T>(what: &str, outcome: Outcome<T>, step: u64, by: usize, reason: &str) -> Verdict {
    let expected = TransportError::Aborted { step, by, reason: reason.to_string() };
    let name = format!("Aborted by rank {by} because of {reason:?}");
    refused(what, outcome, |error| *error == expected, &name)
}

/// Every kind of operation fails once the abort has come to this rank.
async fn all_fail(endpoint: &Endpoint, step: u64, by: usize, reason: &str) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    let gather = endpoint.all_gather(step, 1000, Vec::new()).await;
    aborted("an all_gather of an aborted step", gather, step, by, reason)?;
    if endpoint.ranks() > 1 {
        let recv = endpoint.recv(previous, tag(step, 1000, previous, me)).await;
        aborted("a receive of an aborted step", recv, step, by, reason)?;
        let late = tag(step, 1000, me, next);
        let send = endpoint.send(next, late, payload(late)).await;
        aborted("a send of an aborted step", send, step, by, reason)?;
    }
    Ok(())
}

/// Everyone waits in `step`, in receives from all others and in a collective, except rank
/// `by`, which aborts. `control` is a step that stays healthy.
async fn abort_while_waiting(endpoint: &Endpoint, control: u64, step: u64, by: usize) -> Verdict {
    let (me, ranks) = (endpoint.rank(), endpoint.ranks());
    let reason = format!("told to by the check of step {step}");
    let mut receives = Vec::new();
    for from in (0..ranks).filter(|&from| from != me) {
        let recv = endpoint.recv(from, tag(step, 0, from, me));
        receives.push(Posted::wait_for("a receive without a send", recv).await?);
    }
    let gather = match me == by {
        true => None,
        false => {
            let gather = endpoint.all_gather(step, 0, Vec::new());
            Some(Posted::wait_for("an incomplete round", gather).await?)
        }
    };
    barrier(endpoint, control, (step - control) as u32).await?;
    if me == by {
        endpoint.abort(step, &reason);
        endpoint.abort(step, "a second thought");
    }
    for recv in receives {
        aborted("a pending receive", recv.outcome().await?, step, by, &reason)?;
    }
    if let Some(gather) = gather {
        aborted("a pending all_gather", gather.outcome().await?, step, by, &reason)?;
    }
    all_fail(endpoint, step, by, &reason).await
}

/// An abort wakes and fails what all ranks, including the aborting one, have pending.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn abort_reaches_pending(endpoint: &Endpoint, step: u64) -> Verdict {
    let last = endpoint.ranks() - 1;
    abort_while_waiting(endpoint, step, step + 1, 0).await?;
    abort_while_waiting(endpoint, step, step + 2, last).await?;
    barrier(endpoint, step, 3).await?;
    endpoint.end_step(step + 2);
    Ok(())
}

/// Ranks that come to a step only after it was aborted find it aborted, though a message
/// of it waits for them.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn abort_reaches_the_unbegun(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    let reason = "before anyone else began";
    let mut unclaimed = None;
    if me == 0 {
        if endpoint.ranks() > 1 {
            let early = tag(step + 1, 0, me, next);
            let send = endpoint.send(next, early, payload(early));
            unclaimed = Some(Posted::start([send]).await);
        }
        endpoint.abort(step + 1, reason);
    }
    barrier(endpoint, step, 0).await?;
    drop(unclaimed);
    if endpoint.ranks() > 1 {
        let recv = endpoint.recv(previous, tag(step + 1, 1, previous, me)).await;
        aborted("a receive without a send", recv, step + 1, 0, reason)?;
        if previous == 0 {
            let recv = endpoint.recv(previous, tag(step + 1, 0, previous, me)).await;
            aborted("a receive after the abort", recv, step + 1, 0, reason)?;
        }
    }
    all_fail(endpoint, step + 1, 0, reason).await?;
    barrier(endpoint, step, 1).await?;
    endpoint.end_step(step + 1);
    Ok(())
}

/// Operations of the next step work on, whether posted before the abort or after.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn abort_spares_the_next_step(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    let (alone, last) = (endpoint.ranks() == 1, endpoint.ranks() - 1);
    let reason = "this step only";
    let expected = tag(step + 1, 0, previous, me);
    let ahead = match alone {
        true => None,
        false => {
            let recv = endpoint.recv(previous, expected);
            Some(Posted::wait_for("a receive before the send", recv).await?)
        }
    };
    barrier(endpoint, step + 1, 0).await?;
    if me == last {
        endpoint.abort(step, reason);
    }
    all_fail(endpoint, step, last, reason).await?;

    if let Some(ahead) = ahead {
        let sends = [0, 1].map(|m| {
            let tag = tag(step + 1, m, me, next);
            endpoint.send(next, tag, payload(tag))
        });
        let sends = Posted::start(sends).await;
        let receives = async {
            arrived(ahead.outcome().await?, expected)?;
            // One message must outlast the aborted step's end.
            endpoint.end_step(step);
            receive(endpoint, previous, tag(step + 1, 1, previous, me)).await
        };
        try_join(sends.all("a send"), receives).await?;
    }
    close(endpoint, step + 1).await?;
    ring(endpoint, step + 2).await
}

/// Once all ranks know of an abort, further ones change neither its rank nor its reason.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn first_abort_wins(endpoint: &Endpoint, step: u64) -> Verdict {
    if endpoint.rank() == 0 {
        endpoint.abort(step + 1, "the first");
    }
    all_fail(endpoint, step + 1, 0, "the first").await?;
    barrier(endpoint, step, 0).await?;
    endpoint.abort(step + 1, "one too many");
    barrier(endpoint, step, 1).await?;
    all_fail(endpoint, step + 1, 0, "the first").await?;
    barrier(endpoint, step, 2).await?;
    endpoint.end_step(step + 1);
    Ok(())
}
