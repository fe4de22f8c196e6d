//! Checks of what one step leaves to the next. That its memory is freed can't be seen
//! through the trait; an implementor tests it separately.

use futures::future::try_join;

use crate::conformance::endpoint::{Endpoint, Verdict};
use crate::conformance::messages::ring;
use crate::conformance::posted::{Posted, barrier, close, payload, receive, refused, ring_of, tag};
use crate::error::TransportError;

/// Two steps use tags that differ in nothing else. Their messages don't mix, and the end
/// of the first takes nothing from the second.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn two_steps_in_a_row(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    if endpoint.ranks() > 1 {
        let sends = [(step, 0), (step + 1, 0), (step + 1, 1)].map(|(step, m)| {
            let tag = tag(step, m, me, next);
            endpoint.send(next, tag, payload(tag))
        });
        let sends = Posted::start(sends).await;
        let receives = async {
            receive(endpoint, previous, tag(step + 1, 0, previous, me)).await?;
            receive(endpoint, previous, tag(step, 0, previous, me)).await?;
            barrier(endpoint, step, 0).await?;
            endpoint.end_step(step);
            receive(endpoint, previous, tag(step + 1, 1, previous, me)).await
        };
        try_join(sends.all("a send"), receives).await?;
    }
    close(endpoint, step + 1).await
}

/// Whatever a rank wants of a step that it ended fails, be it pending or new; a message
/// that nobody claimed is gone; the next step works.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn ended_steps_stay_ended(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    let ended = |error: &TransportError| *error == TransportError::Ended { step };
    if endpoint.ranks() > 1 {
        let (outgoing, incoming) = (tag(step, 0, me, next), tag(step, 0, previous, me));
        let unclaimed = endpoint.send(next, outgoing, payload(outgoing));
        let unclaimed = Posted::start([unclaimed]).await;
        let never_sent = endpoint.recv(previous, tag(step, 1, previous, me));
        let never_sent = Posted::wait_for("a receive without a send", never_sent).await?;
        close(endpoint, step).await?;
        drop(unclaimed);

        let outcome = never_sent.outcome().await?;
        refused("a receive pending at the step's end", outcome, ended, "Ended")?;
        let outcome = endpoint.recv(previous, incoming).await;
        refused("a receive after the step's end", outcome, ended, "Ended")?;
        let late = tag(step, 2, me, next);
        let outcome = endpoint.send(next, late, payload(late)).await;
        refused("a send after the step's end", outcome, ended, "Ended")?;
    } else {
        close(endpoint, step).await?;
    }
    let outcome = endpoint.all_gather(step, 7, Vec::new()).await;
    refused("an all_gather after the step's end", outcome, ended, "Ended")?;
    endpoint.abort(step, "too late to matter");
    ring(endpoint, step + 1).await
}
