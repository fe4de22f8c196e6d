//! Programs: plans lowered to what each rank really does, communication and recomputation included.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::grid::{Mark, cell_grid};
use crate::plan::parse_rows;
use crate::progress::check_program;
use crate::{
    Action, Compute, ComputeKind, Direction, Edge, Edges, Fault, Message, Plan, PlanError, Rank,
    Retention, Stage,
};

/// For each rank, what it does in one step, in order.
///
/// Sends follow the action that produces the value, receives precede the one that needs it, and `R`
/// precedes the receive of the gradient, so that recomputation runs while the gradient is on its way.
/// A send is posted and doesn't keep its rank waiting; that is what makes every valid plan run.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    rows: Vec<Vec<Action>>,
    plan: Plan,
    edges: Edges,
    retention: Retention,
}

impl Program {
    /// Adds sends and receives along the edges, and an `R` before the backward of each stage and
    /// micro-batch whose retention drops something (unless the plan places it already).
    ///
    /// # Errors
    ///
    /// [`PlanError::Mismatch`] if edges or retention were made for another plan;
    /// [`PlanError::Cell`] if the plan recomputes what the retention keeps.
    pub fn lower(plan: &Plan, edges: &Edges, retention: &Retention) -> Result<Self, PlanError> {
        check_sizes(plan, edges, retention)?;
        let rows = lower_rows(plan, edges, retention)?;
        Ok(Self { rows, plan: plan.clone(), edges: edges.clone(), retention: retention.clone() })
    }

    /// Reads rows of action texts that hold communication, as strictly as [`Plan::parse`] reads compute.
    ///
    /// `edges` makes the edges for a number of stages. `in_flight` says how many messages from one rank
    /// to another may be on their way before a send keeps its rank waiting: `Some(0)` is a rendezvous,
    /// `None` never waits. A stage that recomputes is taken as one layer, because texts name no layers.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`]; and [`PlanError::Cell`] for a message that is missing, doubled, not along an
    /// edge, on the wrong rank or in the wrong place, and for ranks that wait for each other.
    pub fn parse<'a, R>(
        rows: impl IntoIterator<Item = R>,
        edges: impl FnOnce(usize) -> Result<Edges, PlanError>,
        in_flight: Option<usize>,
    ) -> Result<Self, PlanError>
    where
        R: IntoIterator<Item = &'a str>,
    {
        Self::from_rows(parse_rows(rows)?, edges, in_flight)
    }

    pub(crate) fn from_rows(
        rows: Vec<Vec<Action>>,
        edges: impl FnOnce(usize) -> Result<Edges, PlanError>,
        in_flight: Option<usize>,
    ) -> Result<Self, PlanError> {
        let plan =
            Plan::new(rows.iter().map(|row| row.iter().filter_map(Action::compute).collect()))?;
        let edges = edges(plan.stages())?;
        let retention = recomputed(&plan);
        check_sizes(&plan, &edges, &retention)?;
        let program = Self { rows, plan, edges, retention };
        program.check_messages()?;
        check_program(&program.rows, program.plan.placement(), in_flight)?;
        Ok(program)
    }

    /// Refuses the program if its ranks wait for each other over a transport on which a send keeps
    /// its rank waiting while `in_flight` messages to the same rank are on their way.
    ///
    /// # Errors
    ///
    /// [`PlanError::Cell`] with [`Fault::Deadlock`].
    pub fn check_in_flight(&self, in_flight: usize) -> Result<(), PlanError> {
        check_program(&self.rows, self.plan.placement(), Some(in_flight))
    }

    /// The plan it was lowered from.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The edges that values travel along.
    #[must_use]
    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// What is kept from forward to backward.
    #[must_use]
    pub fn retention(&self) -> &Retention {
        &self.retention
    }

    /// The actions of one rank in order.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn row(&self, rank: usize) -> &[Action] {
        &self.rows[rank]
    }

    /// The rank of a stage.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn rank_of(&self, stage: Stage) -> Rank {
        self.plan.placement()[stage.index()]
    }

    /// The messages that precede and follow a compute action.
    fn messages(&self, action: Compute) -> (Vec<Message>, Vec<Message>) {
        messages(action, &self.plan, &self.edges)
    }

    fn check_messages(&self) -> Result<(), PlanError> {
        for (rank, row) in self.rows.iter().enumerate() {
            let fault = |fault: Fault, position: usize| {
                let missing = match fault {
                    Fault::Missing(action) => Some(action),
                    _ => None,
                };
                let grid = cell_grid(&self.rows, Some(Mark { rank, position, missing }));
                Err(PlanError::Cell { fault, rank: Rank::new(rank), position, grid })
            };
            let mut at = HashMap::new();
            for (position, action) in row.iter().enumerate() {
                if at.insert(*action, position).is_some() {
                    return fault(Fault::Doubled(*action), position);
                }
            }
            let mut needed = HashSet::new();
            for (position, compute) in
                row.iter().enumerate().filter_map(|(p, a)| Some((p, a.compute()?)))
            {
                let (before, after) = self.messages(compute);
                let early = before.into_iter().map(|m| (Action::Recv(m), true));
                let late = after.into_iter().map(|m| (Action::Send(m), false));
                for (message, precedes) in early.chain(late) {
                    let Some(&place) = at.get(&message) else {
                        return fault(Fault::Missing(message), position);
                    };
                    needed.insert(message);
                    if precedes && place > position {
                        let fault_kind = Fault::OutOfOrder { early: compute.into(), late: message };
                        return fault(fault_kind, position);
                    }
                    if !precedes && place < position {
                        let fault_kind = Fault::OutOfOrder { early: message, late: compute.into() };
                        return fault(fault_kind, place);
                    }
                }
            }
            let stray = |a: &Action| a.compute().is_none() && !needed.contains(a);
            if let Some(position) = row.iter().position(stray) {
                let why = "no edge between two ranks asks for it here";
                return fault(Fault::Unneeded(row[position], why), position);
            }
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, row) in self.rows.iter().enumerate() {
            write!(f, "rank {rank} |")?;
            for action in row {
                write!(f, " {action}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The retention that the plan's own `R` actions ask for, each stage taken as one layer.
pub(crate) fn recomputed(plan: &Plan) -> Retention {
    Retention::keep_all(plan).with_recomputed(plan, &vec![1; plan.stages()])
}

fn check_sizes(plan: &Plan, edges: &Edges, retention: &Retention) -> Result<(), PlanError> {
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

/// The messages between ranks that an action needs first, and those it gives rise to.
fn messages(action: Compute, plan: &Plan, edges: &Edges) -> (Vec<Message>, Vec<Message>) {
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
            (outgoing().map(down).collect(), incoming().map(down).collect())
        }
        ComputeKind::Recompute | ComputeKind::BackwardWeight => (Vec::new(), Vec::new()),
    }
}

fn lower_rows(
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
                return Err(PlanError::Cell {
                    fault: Fault::Unneeded(action.into(), why),
                    rank: Rank::new(rank),
                    position,
                    grid: cell_grid(plan.rows(), Some(Mark { rank, position, missing: None })),
                });
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
