//! Plans. One that exists has been checked: what makes it valid stands in `validation`, how ranks
//! could wait for each other in `progress`, how it is shown in `grid`.

pub(crate) mod activations;
pub(crate) mod builder;
pub(crate) mod file;
pub(crate) mod grid;
pub(crate) mod parse;
pub(crate) mod progress;
mod validation;

use std::fmt;

use self::grid::slot_grid;
use self::parse::parse_rows;
use self::validation::Census;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::PlanError;
use crate::words::ids::{Rank, Stage};
use crate::words::mode::Mode;

/// For each rank, the ordered list of compute actions of one mini-batch.
///
/// [`Plan::new`] accepts exactly the plans that can run:
///
/// - every stage and micro-batch has exactly one `F` and either one `B`, or one `I` and one `W`
///   (or no backward at all in the whole plan, which then is for evaluation);
/// - on its rank, `F` < `R` < `B` (or `I` < `W`) for each micro-batch, `R` at most once;
/// - each stage lives on one rank, and each rank has something to do;
/// - no cycle: a rank that waits for a neighbour is never waited for by it.
///
/// Displayed as a grid with one slot for each action, idle slots as dots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    rows: Vec<Vec<Compute>>,
    placement: Vec<Rank>,
    /// The stages of each rank, ascending: the placement the other way round.
    stages: Vec<Vec<Stage>>,
    micro_batches: usize,
    mode: Mode,
}

impl Plan {
    /// Checks the rows, one per rank, and makes a plan of them.
    ///
    /// # Errors
    ///
    /// [`PlanError::Cell`] shows the grid with the first bad cell in brackets; zero ranks, a rank
    /// without actions and more than [`MAX_ACTIONS`](crate::MAX_ACTIONS) are refused too.
    pub fn new(rows: impl IntoIterator<Item = Vec<Compute>>) -> Result<Self, PlanError> {
        let rows: Vec<_> = rows.into_iter().collect();
        let census = Census::take(&rows)?;
        let mut stages = vec![Vec::new(); rows.len()];
        for (stage, rank) in Stage::first(census.placement.len()).zip(&census.placement) {
            stages[rank.index()].push(stage);
        }
        progress::check_rows(&rows, &census.placement, census.micro_batches)?;
        Ok(Self {
            stages,
            placement: census.placement,
            micro_batches: census.micro_batches,
            mode: census.mode,
            rows,
        })
    }

    /// Reads rows of action texts; empty cells are idle slots and change nothing.
    ///
    /// # Errors
    ///
    /// [`PlanError::Parse`] for a cell that isn't a compute action, and as [`Plan::new`].
    ///
    /// ```
    /// # use stovepipe_schedule::Plan;
    /// let plan = Plan::parse(["0F0,0F1,,0B0,0B1", ",1F0,1B0,1F1,1B1"].map(|row| row.split(',')))?;
    /// assert_eq!((plan.ranks(), plan.stages(), plan.micro_batches()), (2, 2, 2));
    /// # Ok::<(), stovepipe_schedule::PlanError>(())
    /// ```
    pub fn parse<'a, R>(rows: impl IntoIterator<Item = R>) -> Result<Self, PlanError>
    where
        R: IntoIterator<Item = &'a str>,
    {
        Self::new(parse_rows(rows)?)
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.rows.len()
    }

    /// Number of stages over all ranks.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.placement.len()
    }

    /// Number of micro-batches.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Whether the plan trains or only runs forward.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The actions of one rank in order.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn row(&self, rank: usize) -> &[Compute] {
        &self.rows[rank]
    }

    /// The actions of all ranks.
    #[must_use]
    pub fn rows(&self) -> &[Vec<Compute>] {
        &self.rows
    }

    /// The rank of each stage.
    #[must_use]
    pub fn placement(&self) -> &[Rank] {
        &self.placement
    }

    /// The stages on one rank, ascending.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn stages_of(&self, rank: usize) -> &[Stage] {
        &self.stages[rank]
    }

    /// Whether a backward is split into `I` and `W` anywhere.
    #[must_use]
    pub fn splits_backward(&self) -> bool {
        self.rows.iter().flatten().any(|action| action.kind == ComputeKind::BackwardInput)
    }

    /// The column of each action in a table of the plan, and the number of columns.
    fn columns(&self) -> (Vec<Vec<usize>>, usize) {
        progress::columns(&self.rows, &self.placement, self.micro_batches)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (columns, length) = self.columns();
        f.write_str(&slot_grid(&self.rows, &columns, length))
    }
}
