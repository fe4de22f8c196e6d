//! Where sends, receives and recomputation come from: adds them to the rows of a plan.

use std::collections::HashSet;

use crate::plan::Plan;
use crate::plan::grid::bad_cell;
use crate::program::retention::Retention;
use crate::words::action::Action;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::edges::Edges;
use crate::words::error::{Fault, PlanError};
use crate::words::message::{Direction, Edge, Message};

/// The messages between ranks that an action needs first, and those it gives rise to.
pub(super) fn messages(
    action: Compute,
    plan: &Plan,
    edges: &Edges,
) -> (Vec<Message>, Vec<Message>) {
    let Compute { kind, stage, micro_batch } = action;
    let crosses =
        |edge: &Edge| plan.placement()[edge.from.index()] != plan.placement()[edge.to.index()];
    let up = |edge: Edge| {
        let Edge { from, to } = edge;
        Message { direction: Direction::Forward, from, to, micro_batch }
    };
    let down = |edge: Edge| {
        let Edge { from: to, to: from } = edge;
        Message { direction: Direction::Backward, from, to, micro_batch }
    };
    let incoming = || edges.incoming(stage).filter(crosses);
    let outgoing = || edges.outgoing(stage).filter(crosses);
    match kind {
        ComputeKind::Forward => (incoming().map(up).collect(), outgoing().map(up).collect()),
        ComputeKind::Backward | ComputeKind::BackwardInput => {
            let returns = |edge: &Edge| edges.carries_gradient(edge);
            let needed = outgoing().filter(returns).map(down).collect();
            (needed, incoming().filter(returns).map(down).collect())
        }
        ComputeKind::Recompute | ComputeKind::BackwardWeight => (Vec::new(), Vec::new()),
    }
}

/// The rows of the program of a plan.
pub(super) fn lower_rows(
    plan: &Plan,
    edges: &Edges,
    retention: &Retention,
) -> Result<Vec<Vec<Action>>, PlanError> {
    let mut rows = Vec::with_capacity(plan.ranks());
    for (rank, row) in plan.rows().iter().enumerate() {
        let placed: HashSet<_> = row
            .iter()
            .filter(|a| a.kind == ComputeKind::Recompute)
            .map(|a| (a.stage, a.micro_batch))
            .collect();
        let mut actions = Vec::with_capacity(3 * row.len());
        for (position, &action) in row.iter().enumerate() {
            let Compute { kind, stage, micro_batch } = action;
            let recomputes = retention.of(stage, micro_batch).recomputes();
            if kind == ComputeKind::Recompute && !recomputes {
                let why = "the retention keeps everything of this micro-batch";
                let fault = Fault::Unneeded(action.into(), why);
                return Err(bad_cell(plan.rows(), rank, position, fault));
            }
            let is_backward = matches!(kind, ComputeKind::Backward | ComputeKind::BackwardInput);
            if is_backward && recomputes && !placed.contains(&(stage, micro_batch)) {
                actions.push(Compute { kind: ComputeKind::Recompute, ..action }.into());
            }
            let (before, after) = messages(action, plan, edges);
            actions.extend(before.into_iter().map(Action::Recv));
            actions.push(action.into());
            actions.extend(after.into_iter().map(Action::Send));
        }
        rows.push(actions);
    }
    Ok(rows)
}
