//! Programs as files: the same two forms as those of plans, communication included.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use crate::plan::Plan;
use crate::plan::file::{File, read_rows, write_csv};
use crate::program::Program;
use crate::program::retention::Retention;
use crate::words::action::Action;
use crate::words::edges::Edges;
use crate::words::error::PlanError;
use crate::words::message::Edge;

impl Program {
    /// One row for each rank, one cell for each action, communication included.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let rows = (0..self.plan().ranks()).map(|rank| self.row(rank));
        write_csv(rows.map(|row| row.iter().map(ToString::to_string).collect()))
    }

    /// Reads a plan file: CSV, or JSON if it begins with a brace. A byte order mark is left out.
    ///
    /// The file may hold compute actions only, which are then lowered along the chain of stages, or
    /// all communication too, which is then checked as strictly. Messages between stages that
    /// aren't neighbours make skips. A stage with an `R` is taken as one layer that is recomputed.
    ///
    /// # Errors
    ///
    /// [`PlanError::File`] if it is neither, and as [`Program::parse`] and [`Program::lower`].
    pub fn read(text: &str, in_flight: Option<usize>) -> Result<Self, PlanError> {
        let rows = read_rows(text)?;
        let messages = || {
            rows.iter().flatten().filter_map(|action| match action {
                Action::Compute(_) => None,
                Action::Send(message) | Action::Recv(message) => Some(message.edge()),
            })
        };
        if messages().next().is_none() {
            let compute = rows.iter().map(|row| row.iter().filter_map(Action::compute).collect());
            let plan = Plan::new(compute)?;
            let program =
                Self::lower(&plan, &Edges::chain(plan.stages()), &Retention::of_plan(&plan))?;
            return match in_flight {
                Some(limit) => program.check_in_flight(limit).map(|()| program),
                None => Ok(program),
            };
        }
        let is_skip = |edge: &Edge| edge.from.index() + 1 != edge.to.index();
        let skips: BTreeSet<Edge> = messages().filter(is_skip).collect();
        let edges = |stages| {
            skips.iter().try_fold(Edges::chain(stages), |edges, e| edges.with_skip(e.from, e.to))
        };
        Self::from_rows(rows, edges, in_flight)
    }
}

/// A program is serialized like a plan, communication included. Reading is [`Program::read`]'s
/// business, which finds the edges.
impl Serialize for Program {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = (0..self.plan().ranks()).map(|rank| self.row(rank).to_vec());
        File { ranks: rows.collect() }.serialize(serializer)
    }
}
