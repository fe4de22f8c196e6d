//! Makes sure that rows with communication are a program: all messages are there, where they are
//! needed, and ranks don't wait for each other.

use std::collections::{HashMap, HashSet};

use crate::plan::Plan;
use crate::plan::grid::bad_cell;
use crate::plan::progress::{advance_until_still, refuse_stuck};
use crate::program::lowering::messages;
use crate::program::retention::Retention;
use crate::words::action::Action;
use crate::words::edges::Edges;
use crate::words::error::{Fault, PlanError};
use crate::words::ids::{Rank, Stage};
use crate::words::message::Message;

/// Refuses edges and a retention that were made for another plan.
pub(super) fn check_sizes(
    plan: &Plan,
    edges: &Edges,
    retention: &Retention,
) -> Result<(), PlanError> {
    retention.check(plan)?;
    if edges.stages() == plan.stages() {
        return Ok(());
    }
    Err(PlanError::Mismatch {
        what: "list of edges",
        unit: "stages",
        found: edges.stages(),
        expected: plan.stages(),
    })
}

/// Refuses rows whose messages aren't exactly those that the plan's actions need along the edges.
pub(super) fn check_messages(
    rows: &[Vec<Action>],
    plan: &Plan,
    edges: &Edges,
) -> Result<(), PlanError> {
    for (rank, row) in rows.iter().enumerate() {
        check_row(row, plan, edges)
            .map_err(|(position, fault)| bad_cell(rows, rank, position, fault))?;
    }
    Ok(())
}

/// The first cell at fault in the row of one rank.
fn check_row(row: &[Action], plan: &Plan, edges: &Edges) -> Result<(), (usize, Fault)> {
    let mut at = HashMap::new();
    for (position, action) in row.iter().enumerate() {
        if at.insert(*action, position).is_some() {
            return Err((position, Fault::Doubled(*action)));
        }
    }
    let mut needed = HashSet::new();
    let computed = row.iter().enumerate().filter_map(|(p, a)| Some((p, a.compute()?)));
    for (position, compute) in computed {
        let (before, after) = messages(compute, plan, edges);
        let receives = before.into_iter().map(|m| (Action::Recv(m), true));
        let sends = after.into_iter().map(|m| (Action::Send(m), false));
        for (message, precedes) in receives.chain(sends) {
            let Some(&place) = at.get(&message) else {
                return Err((position, Fault::Missing(message)));
            };
            needed.insert(message);
            if precedes && place > position {
                let fault = Fault::OutOfOrder { early: compute.into(), late: message };
                return Err((position, fault));
            }
            if !precedes && place < position {
                let fault = Fault::OutOfOrder { early: message, late: compute.into() };
                return Err((place, fault));
            }
        }
    }
    let stray = |a: &Action| a.compute().is_none() && !needed.contains(a);
    match row.iter().position(stray) {
        None => Ok(()),
        Some(position) => {
            let why = "no edge between two ranks asks for it here";
            Err((position, Fault::Unneeded(row[position], why)))
        }
    }
}

/// Refuses program rows in which ranks wait for each other when a send blocks its rank while
/// `in_flight` earlier messages to the same rank haven't been taken (0: until the receiver is
/// there).
pub(super) fn check_in_flight(
    rows: &[Vec<Action>],
    placement: &[Rank],
    in_flight: Option<usize>,
) -> Result<(), PlanError> {
    let ranks = rows.len();
    let limit = in_flight.unwrap_or(usize::MAX);
    let mut next = vec![0; ranks];
    let mut under_way: Vec<HashSet<Message>> = vec![Default::default(); ranks];
    // Messages on the way from one rank to another.
    let mut outstanding = HashMap::<(usize, usize), usize>::new();
    let owner = |stage: Stage| placement[stage.index()].index();
    advance_until_still(ranks, |rank, wake| {
        while let Some(action) = rows[rank].get(next[rank]) {
            match action {
                Action::Compute(_) => {}
                Action::Send(message) => {
                    let to = owner(message.to);
                    let count = outstanding.entry((rank, to)).or_default();
                    let expected = rows[to].get(next[to]) == Some(&Action::Recv(*message));
                    if *count >= limit && !expected {
                        return;
                    }
                    *count += 1;
                    under_way[to].insert(*message);
                    wake(to);
                }
                Action::Recv(message) => {
                    let from = owner(message.from);
                    // The sender may be free to go on as soon as this rank waits for its message.
                    wake(from);
                    if !under_way[rank].remove(message) {
                        return;
                    }
                    if let Some(count) = outstanding.get_mut(&(from, rank)) {
                        *count -= 1;
                    }
                }
            }
            next[rank] += 1;
        }
    });
    refuse_stuck(rows, &next, |action: Action| match action {
        Action::Compute(_) => None,
        Action::Send(m) => Some(format!("{action} waits for {}", Action::Recv(m))),
        Action::Recv(m) => Some(format!("{action} waits for {}", Action::Send(m))),
    })
}
