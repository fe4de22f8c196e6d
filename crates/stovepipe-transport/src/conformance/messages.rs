//! Checks of messages between two ranks within one step. What happens across steps or
//! after an abort is checked elsewhere.

use futures::future::{BoxFuture, poll_immediate, try_join, try_join_all};

use crate::conformance::endpoint::{Endpoint, Verdict};
use crate::conformance::posted::{
    Posted, arrived, barrier, close, payload, receive, refused, ring_of, tag,
};
use crate::error::TransportError;
use crate::tag::{Direction, Tag};

fn send<'a>(
    endpoint: &'a Endpoint,
    to: usize,
    tag: Tag,
) -> BoxFuture<'a, Result<(), TransportError>> {
    endpoint.send(to, tag, payload(tag))
}

/// Every rank sends activations to the next and gradients to the previous one. With two
/// ranks these are the same peer.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn ring(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    if endpoint.ranks() > 1 {
        let back = |from, to| Tag { direction: Direction::Backward, ..tag(step, 0, from, to) };
        let sends = Posted::start([
            send(endpoint, next, tag(step, 0, me, next)),
            send(endpoint, previous, back(me, previous)),
        ]);
        let receives = async {
            receive(endpoint, next, back(next, me)).await?;
            receive(endpoint, previous, tag(step, 0, previous, me)).await
        };
        try_join(sends.await.all("a send"), receives).await?;
    }
    close(endpoint, step).await
}

/// Both neighbours post their sends, and only then their receives: over a transport that
/// hands over only when both sides have come, that must not be a deadlock.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn send_before_receive(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, peer) = (endpoint.rank(), endpoint.rank() ^ 1);
    if peer < endpoint.ranks() {
        let sends = (0..2).map(|m| send(endpoint, peer, tag(step, m, me, peer)));
        let sends = Posted::start(sends).await;
        let receives = async {
            receive(endpoint, peer, tag(step, 1, peer, me)).await?;
            receive(endpoint, peer, tag(step, 0, peer, me)).await
        };
        try_join(sends.all("a send"), receives).await?;
    }
    close(endpoint, step).await
}

/// Messages are received in the reverse of the order in which they were sent, and differ
/// in one field of the tag at a time.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn out_of_order_tags(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    if endpoint.ranks() > 1 {
        let tags = |from, to| {
            let plain = tag(step, 0, from, to);
            let from_stage = plain.from_stage + 100;
            let to_stage = plain.to_stage + 100;
            let fields = [
                plain,
                Tag { from_stage, ..plain },
                Tag { to_stage, ..plain },
                Tag { direction: Direction::Backward, ..plain },
                Tag { direction: Direction::Shared, ..plain },
            ];
            fields.into_iter().chain((1..8).map(move |m| tag(step, m, from, to)))
        };
        let sends = tags(me, next).map(|tag| send(endpoint, next, tag));
        let sends = Posted::start(sends).await;
        let receives = async {
            let mut tags: Vec<Tag> = tags(previous, me).collect();
            tags.reverse();
            for tag in tags {
                receive(endpoint, previous, tag).await?;
            }
            Ok(())
        };
        try_join(sends.all("a send"), receives).await?;
    }
    close(endpoint, step).await
}

/// A receive is polled before its message is sent, by two wakers; the later one is woken.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn receives_posted_ahead(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    if endpoint.ranks() > 1 {
        let expected = tag(step, 0, previous, me);
        let ahead = endpoint.recv(previous, expected);
        let ahead = Posted::wait_for("a receive before the send", ahead).await?;
        barrier(endpoint, step, 0).await?;
        let sends = Posted::start([send(endpoint, next, tag(step, 0, me, next))]).await;
        let receives = async { arrived(ahead.outcome().await?, expected) };
        try_join(sends.all("a send"), receives).await?;
    }
    close(endpoint, step).await
}

/// A receive is dropped before its message was sent, after it came in, and just when it
/// could have been returned. A second receive always gets it.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn dropped_receives_lose_nothing(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    if endpoint.ranks() > 1 {
        let outgoing = |m| Posted::start([send(endpoint, next, tag(step, m, me, next))]);
        let incoming = |m| tag(step, m, previous, me);
        let early =
            |m| Posted::wait_for("a receive before the send", endpoint.recv(previous, incoming(m)));

        drop(early(0).await?);
        barrier(endpoint, step, 0).await?;
        let again = receive(endpoint, previous, incoming(0));
        try_join(outgoing(0).await.all("a send"), again).await?;

        let unclaimed = early(1).await?;
        barrier(endpoint, step, 1).await?;
        let sends = outgoing(1).await;
        barrier(endpoint, step, 2).await?;
        drop(unclaimed);
        let again = receive(endpoint, previous, incoming(1));
        try_join(sends.all("a send"), again).await?;

        let sends = outgoing(2).await;
        barrier(endpoint, step, 3).await?;
        let again = async {
            // Bound to a name, so that the first receive is gone before the second is made.
            let at_once = poll_immediate(endpoint.recv(previous, incoming(2))).await;
            match at_once {
                Some(outcome) => arrived(outcome, incoming(2)),
                None => receive(endpoint, previous, incoming(2)).await,
            }
        };
        try_join(sends.all("a send"), again).await?;
    }
    close(endpoint, step).await
}

/// A thousand messages are sent before the first is received.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn many_in_flight(endpoint: &Endpoint, step: u64) -> Verdict {
    const MESSAGES: usize = 1000;
    let (me, previous, next) = ring_of(endpoint);
    if endpoint.ranks() > 1 {
        let sends = (0..MESSAGES).map(|m| send(endpoint, next, tag(step, m, me, next)));
        let sends = Posted::start(sends).await;
        let receives =
            (0..MESSAGES).rev().map(|m| receive(endpoint, previous, tag(step, m, previous, me)));
        try_join(sends.all("a send"), try_join_all(receives)).await?;
    }
    close(endpoint, step).await
}

/// Oneself and ranks outside the group are refused.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn wrong_ranks(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, ranks) = (endpoint.rank(), endpoint.ranks());
    for rank in [me, ranks, usize::MAX] {
        let (expected, name) = if rank == me {
            (TransportError::SelfMessage { rank }, "SelfMessage")
        } else {
            (TransportError::NoSuchRank { rank, ranks }, "NoSuchRank")
        };
        let tag = tag(step, 0, me, me);
        let sent = endpoint.send(rank, tag, payload(tag)).await;
        refused(&format!("a send to rank {rank}"), sent, |error| *error == expected, name)?;
        let received = endpoint.recv(rank, tag).await;
        refused(
            &format!("a receive from rank {rank}"),
            received,
            |error| *error == expected,
            name,
        )?;
    }
    close(endpoint, step).await
}
