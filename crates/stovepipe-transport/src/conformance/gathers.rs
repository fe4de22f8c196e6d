//! Checks of the collective within a step that goes well.

use futures::future::try_join;

use crate::conformance::endpoint::{Endpoint, Verdict};
use crate::conformance::posted::{Posted, arrived, barrier, close, payload, ring_of, same, tag};

fn contribution(rank: usize, round: u32) -> Vec<u8> {
    let lengths = [0, 1, 300];
    let length = lengths[(rank + round as usize) % lengths.len()];
    vec![(rank as u8) ^ (round as u8); length]
}

fn all_contributions(ranks: usize, round: u32) -> Vec<Vec<u8>> {
    (0..ranks).map(|rank| contribution(rank, round)).collect()
}

/// Several rounds, with contributions of different lengths, some of them empty, come out
/// in rank order on every rank; a receive stays posted all the while.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn gathers_in_rank_order(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, previous, next) = ring_of(endpoint);
    let ranks = endpoint.ranks();
    let expected = tag(step, 0, previous, me);
    let ahead = match ranks {
        1 => None,
        _ => Some(
            Posted::wait_for("a receive before the send", endpoint.recv(previous, expected))
                .await?,
        ),
    };
    for round in 0..6 {
        let gathered = endpoint.all_gather(step, round, contribution(me, round)).await;
        let gathered = gathered.map_err(|error| format!("round {round} failed: {error}"))?;
        let all = all_contributions(ranks, round);
        same(&format!("the result of round {round}"), &gathered, &all)?;
    }
    if let Some(ahead) = ahead {
        let tag = tag(step, 0, me, next);
        let sends = Posted::start([endpoint.send(next, tag, payload(tag))]).await;
        let receives = async { arrived(ahead.outcome().await?, expected) };
        try_join(sends.all("a send"), receives).await?;
    }
    close(endpoint, step).await
}

/// All ranks but one wait in a round, polled by two wakers; when the last one joins, the
/// later wakers are woken.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn gathers_wake_the_last_poller(endpoint: &Endpoint, step: u64) -> Verdict {
    let (me, ranks) = (endpoint.rank(), endpoint.ranks());
    for late in 0..ranks {
        let round = 2 * late as u32 + 1;
        let gather = endpoint.all_gather(step, round, contribution(me, round));
        let gathered = if me == late {
            barrier(endpoint, step, round - 1).await?;
            gather.await
        } else {
            let waiting = Posted::wait_for("an incomplete round", gather).await?;
            barrier(endpoint, step, round - 1).await?;
            waiting.outcome().await?
        };
        let gathered = gathered.map_err(|error| format!("round {round} failed: {error}"))?;
        same(&format!("the result of round {round}"), &gathered, &all_contributions(ranks, round))?;
    }
    close(endpoint, step).await
}
