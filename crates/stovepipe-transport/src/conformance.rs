//! The conformance suite for implementors of [`Transport`]. Each check is what *one* rank
//! does, so that it runs the same on threads of one process and on the processes of a
//! cluster. The suite checks the [contract](Transport#contract), not speed, and nothing that a
//! transport over a network can't promise (what happens once a process has died).
//!
//! An implementation within one process calls [`run_all`]:
//!
//! ```
//! use stovepipe_transport::{InProcess, conformance};
//!
//! conformance::run_all(InProcess::group).expect("InProcess keeps the contract");
//! ```
//!
//! One over processes calls [`run_rank`] on its own endpoint, in every process.
//!
//! A check's futures are polled again only when they were woken, so a missed wake shows as
//! a hang; [`on_threads`] turns a hang into an error.

mod aborts;
mod endpoint;
mod gathers;
mod messages;
mod posted;
mod steps;
mod threads;

use std::time::Duration;

use futures::future::BoxFuture;

use crate::transport::Transport;

pub use aborts::{
    abort_reaches_pending, abort_reaches_the_unbegun, abort_spares_the_next_step, first_abort_wins,
};
pub use endpoint::{Endpoint, Verdict};
pub use gathers::{gathers_in_rank_order, gathers_wake_the_last_poller};
pub use messages::{
    dropped_receives_lose_nothing, many_in_flight, out_of_order_tags, receives_posted_ahead, ring,
    send_before_receive, wrong_ranks,
};
pub use steps::{ended_steps_stay_ended, two_steps_in_a_row};
pub use threads::on_threads;

/// How many step numbers a check may use, from the one it is given.
pub const STEPS: u64 = 4;

/// How long [`run_all`] lets a check run before it calls it hung.
pub const LIMIT: Duration = Duration::from_secs(60);

/// One check of the suite: a name, and what one rank does.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    act: for<'a> fn(&'a Endpoint, u64) -> BoxFuture<'a, Verdict>,
}

impl Check {
    /// The name of the check's function.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Does this rank's part, with the [`STEPS`] step numbers from `step` up. If it fails,
    /// those steps are aborted, so that the other ranks needn't wait for this one.
    ///
    /// # Errors
    ///
    /// Which rule was broken and how.
    pub async fn run(&self, endpoint: &Endpoint, step: u64) -> Verdict {
        let verdict = (self.act)(endpoint, step).await;
        if let Err(broken) = &verdict {
            let reason = format!("{}: {broken}", self.name);
            for step in step..step + STEPS {
                endpoint.abort(step, &reason);
            }
        }
        verdict
    }
}

/// All checks, in the order of the suite.
pub fn checks() -> Vec<Check> {
    macro_rules! check {
        ($($name:ident),* $(,)?) => {
            vec![$(Check {
                name: stringify!($name),
                act: |endpoint, step| Box::pin($name(endpoint, step)),
            }),*]
        };
    }
    check![
        ring,
        send_before_receive,
        out_of_order_tags,
        receives_posted_ahead,
        dropped_receives_lose_nothing,
        many_in_flight,
        wrong_ranks,
        gathers_in_rank_order,
        gathers_wake_the_last_poller,
        two_steps_in_a_row,
        ended_steps_stay_ended,
        abort_reaches_pending,
        abort_reaches_the_unbegun,
        abort_spares_the_next_step,
        first_abort_wins,
    ]
}

/// Runs every check on this rank's endpoint, one after the other, from `step` up. To be
/// called on all ranks, with the same `step`.
///
/// # Errors
///
/// Which rule was broken and how.
pub async fn run_rank(endpoint: &Endpoint, step: u64) -> Verdict {
    for (check, step) in checks().iter().zip((step..).step_by(STEPS as usize)) {
        let verdict = check.run(endpoint, step).await;
        verdict.map_err(|broken| format!("{}: {broken}", check.name))?;
    }
    Ok(())
}

/// Runs the suite on groups of one to five ranks that `make` builds: each check on a new
/// group, then all of them in a row on one group.
///
/// # Errors
///
/// Which check failed, with how many ranks, on which rank, and how.
pub fn run_all<T: Transport<Vec<u8>> + 'static>(make: impl Fn(usize) -> Vec<T>) -> Verdict {
    run_all_within(LIMIT, make)
}

/// As [`run_all`], with another limit than [`LIMIT`] for each check.
///
/// # Errors
///
/// As [`run_all`].
pub fn run_all_within<T: Transport<Vec<u8>> + 'static>(
    limit: Duration,
    make: impl Fn(usize) -> Vec<T>,
) -> Verdict {
    for ranks in 1..=5 {
        let group = || {
            let endpoints = make(ranks);
            match endpoints.len() {
                made if made == ranks => Ok(endpoints),
                made => Err(format!("asked for {ranks} endpoints and got {made}")),
            }
        };
        for check in checks() {
            let act = async move |endpoint: &Endpoint, step| check.run(endpoint, step).await;
            on_threads(group()?, limit, act)
                .map_err(|broken| format!("{}, {ranks} ranks: {broken}", check.name))?;
        }
        on_threads(group()?, limit, run_rank)
            .map_err(|broken| format!("all checks in a row, {ranks} ranks: {broken}"))?;
    }
    Ok(())
}
