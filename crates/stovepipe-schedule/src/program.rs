//! Programs: plans lowered to what each rank really does, communication and recomputation included.

pub(crate) mod file;
mod lowering;
pub(crate) mod memory;
mod peaks;
pub(crate) mod retention;
mod validation;

use std::fmt;

use self::lowering::lower_rows;
use self::retention::Retention;
use self::validation::{check_in_flight, check_messages, check_sizes};
use crate::plan::Plan;
use crate::plan::parse::parse_rows;
use crate::words::action::Action;
use crate::words::edges::Edges;
use crate::words::error::PlanError;
use crate::words::ids::{Rank, Stage};

/// For each rank, what it does in one step, in order.
///
/// Sends follow the action that produces the value, receives precede the one that needs it, and `R`
/// precedes the receive of the gradient, so that recomputation runs while the gradient is on its
/// way. A send is posted and doesn't keep its rank waiting; that is what makes every valid plan
/// run.
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

    /// Reads rows of action texts that hold communication, as strictly as [`Plan::parse`] reads
    /// compute.
    ///
    /// `edges` makes the edges for a number of stages. `in_flight` says how many messages from one
    /// rank to another may be on their way before a send keeps its rank waiting: `Some(0)` is a
    /// rendezvous, `None` never waits. A stage that recomputes is taken as one layer, because texts
    /// name no layers.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`]; and [`PlanError::Cell`] for a message that is missing, doubled, not along
    /// an edge, on the wrong rank or in the wrong place, and for ranks that wait for each other.
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

    fn from_rows(
        rows: Vec<Vec<Action>>,
        edges: impl FnOnce(usize) -> Result<Edges, PlanError>,
        in_flight: Option<usize>,
    ) -> Result<Self, PlanError> {
        let plan =
            Plan::new(rows.iter().map(|row| row.iter().filter_map(Action::compute).collect()))?;
        let edges = edges(plan.stages())?;
        let retention = Retention::of_plan(&plan);
        check_sizes(&plan, &edges, &retention)?;
        check_messages(&rows, &plan, &edges)?;
        check_in_flight(&rows, plan.placement(), in_flight)?;
        Ok(Self { rows, plan, edges, retention })
    }

    /// Refuses the program if its ranks wait for each other over a transport on which a send keeps
    /// its rank waiting while `in_flight` messages to the same rank are on their way.
    ///
    /// # Errors
    ///
    /// [`PlanError::Cell`] with [`Fault::Deadlock`](crate::Fault::Deadlock).
    pub fn check_in_flight(&self, in_flight: usize) -> Result<(), PlanError> {
        check_in_flight(&self.rows, self.plan.placement(), Some(in_flight))
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

    /// Which activations are kept from forward to backward.
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
