//! Plans, and what makes one valid. A plan that exists has been checked; how it deadlocks is looked
//! for in `progress`, how it is shown in `grid`.

use std::collections::HashMap;
use std::fmt;

use crate::grid::{Mark, cell_grid, slot_grid};
use crate::progress::check_plan;
use crate::shape::MAX_ACTIONS;
use crate::{Compute, ComputeKind, Fault, MicroBatch, PlanError, Rank, Shape, Stage};

/// Whether a plan trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every forward has its backward.
    Training,
    /// Forwards only: evaluation and inference.
    ForwardOnly,
}

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
    /// without actions and more than [`MAX_ACTIONS`] are refused too.
    pub fn new(rows: impl IntoIterator<Item = Vec<Compute>>) -> Result<Self, PlanError> {
        let rows: Vec<_> = rows.into_iter().collect();
        let census = Census::take(&rows)?;
        let mut stages = vec![Vec::new(); rows.len()];
        for (stage, rank) in Stage::first(census.placement.len()).zip(&census.placement) {
            stages[rank.index()].push(stage);
        }
        let plan = Self {
            stages,
            placement: census.placement,
            micro_batches: census.micro_batches,
            mode: census.mode,
            rows,
        };
        check_plan(&plan)?;
        Ok(plan)
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
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&slot_grid(self))
    }
}

/// Parses rows of cells, skipping empty ones, and says where a bad cell is.
pub(crate) fn parse_rows<'a, T, R>(
    rows: impl IntoIterator<Item = R>,
) -> Result<Vec<Vec<T>>, PlanError>
where
    R: IntoIterator<Item = &'a str>,
    T: std::str::FromStr<Err = crate::ParseActionError>,
{
    let parse_row = |(rank, row): (usize, R)| {
        row.into_iter()
            .map(str::trim)
            .enumerate()
            .filter(|(_, cell)| !cell.is_empty())
            .map(|(position, cell)| {
                cell.parse().map_err(|problem| PlanError::Parse { rank, position, problem })
            })
            .collect()
    };
    rows.into_iter().enumerate().map(parse_row).collect()
}

/// What a first pass over the rows finds: counts, placement, and where each action stands.
struct Census {
    placement: Vec<Rank>,
    micro_batches: usize,
    mode: Mode,
}

impl Census {
    fn take(rows: &[Vec<Compute>]) -> Result<Self, PlanError> {
        let actions: usize = rows.iter().map(Vec::len).sum();
        if rows.is_empty() {
            return Err(PlanError::EmptyShape { what: "ranks" });
        }
        if let Some(rank) = rows.iter().position(Vec::is_empty) {
            return Err(PlanError::IdleRank { rank: Rank::new(rank) });
        }
        let count = |index: fn(&Compute) -> usize| {
            rows.iter().flatten().map(index).max().map_or(0, |last| last + 1)
        };
        let stages = count(|a| a.stage.index());
        let micro_batches = count(|a| a.micro_batch.index());
        if actions > MAX_ACTIONS {
            return Err(PlanError::TooLarge { shape: Shape::new(rows.len(), micro_batches) });
        }
        let fault = |fault: Fault, rank: usize, position: usize| {
            let missing = match &fault {
                Fault::Missing(action) => Some(*action),
                _ => None,
            };
            let mark = Mark { rank, position, missing };
            PlanError::Cell {
                fault,
                rank: Rank::new(rank),
                position,
                grid: cell_grid(rows, Some(mark)),
            }
        };

        // A number that is far too high would make tables as large as it says; find the gap instead.
        if stages.checked_mul(micro_batches).is_none_or(|pairs| pairs > actions) {
            let (missing, rank, position) = first_gap(rows, micro_batches);
            return Err(fault(Fault::Missing(missing.into()), rank, position));
        }

        let mode = if rows.iter().flatten().any(|a| is_backward(a.kind)) {
            Mode::Training
        } else {
            Mode::ForwardOnly
        };
        let mut placement: Vec<Option<Rank>> = vec![None; stages];
        let kinds = ComputeKind::ALL.len();
        let slot = |kind: ComputeKind, stage: Stage, m: MicroBatch| {
            (stage.index() * micro_batches + m.index()) * kinds + kind as usize
        };
        // Position in the row plus one; zero means absent. A row is shorter than `MAX_ACTIONS`.
        let mut seen = vec![0u32; stages * micro_batches * kinds];

        for (rank, row) in rows.iter().enumerate() {
            for (position, action) in row.iter().enumerate() {
                let owner = placement[action.stage.index()].get_or_insert(Rank::new(rank));
                if owner.index() != rank {
                    let (action, owner) = ((*action).into(), *owner);
                    let rank_id = Rank::new(rank);
                    return Err(fault(
                        Fault::WrongRank { action, rank: rank_id, owner },
                        rank,
                        position,
                    ));
                }
                let here = slot(action.kind, action.stage, action.micro_batch);
                if seen[here] != 0 {
                    return Err(fault(Fault::Doubled((*action).into()), rank, position));
                }
                seen[here] = position as u32 + 1;
            }
        }

        // Complete and in order, pair by pair, in the order of the rows.
        for (rank, row) in rows.iter().enumerate() {
            for (position, action) in row.iter().enumerate() {
                let at = |kind| seen[slot(kind, action.stage, action.micro_batch)] as usize;
                let sibling = |kind| Compute { kind, ..*action };
                use ComputeKind::{Backward, BackwardInput, BackwardWeight, Forward, Recompute};
                let need = |kind: ComputeKind| {
                    if at(kind) == 0 {
                        Err(fault(Fault::Missing(sibling(kind).into()), rank, position))
                    } else {
                        Ok(())
                    }
                };
                let after = |kind: ComputeKind| {
                    if at(kind) > position + 1 {
                        let (early, late) = ((*action).into(), sibling(kind).into());
                        Err(fault(Fault::OutOfOrder { early, late }, rank, position))
                    } else {
                        Ok(())
                    }
                };
                match action.kind {
                    Forward if mode == Mode::Training => {
                        if at(BackwardInput) == 0 && at(BackwardWeight) == 0 {
                            need(Backward)?;
                        }
                    }
                    Forward => {}
                    Recompute => {
                        need(Forward)?;
                        after(Forward)?;
                        if mode == Mode::ForwardOnly {
                            let why = "nothing is recomputed without a backward";
                            return Err(fault(
                                Fault::Unneeded((*action).into(), why),
                                rank,
                                position,
                            ));
                        }
                    }
                    Backward => {
                        need(Forward)?;
                        after(Forward)?;
                        after(Recompute)?;
                    }
                    BackwardInput => {
                        if at(Backward) != 0 {
                            let why = "the micro-batch has a whole backward on this stage";
                            return Err(fault(
                                Fault::Unneeded((*action).into(), why),
                                rank,
                                position,
                            ));
                        }
                        need(Forward)?;
                        need(BackwardWeight)?;
                        after(Forward)?;
                        after(Recompute)?;
                    }
                    BackwardWeight => {
                        if at(Backward) != 0 {
                            let why = "the micro-batch has a whole backward on this stage";
                            return Err(fault(
                                Fault::Unneeded((*action).into(), why),
                                rank,
                                position,
                            ));
                        }
                        need(BackwardInput)?;
                        after(BackwardInput)?;
                    }
                }
            }
        }

        // Whole pairs that nothing in the rows mentions.
        let complete = seen.chunks(kinds).all(|kinds| kinds.iter().any(|&at| at != 0));
        match placement.into_iter().collect::<Option<Vec<_>>>() {
            Some(placement) if complete => Ok(Self { placement, micro_batches, mode }),
            _ => {
                let (missing, rank, position) = first_gap(rows, micro_batches);
                Err(fault(Fault::Missing(missing.into()), rank, position))
            }
        }
    }
}

fn is_backward(kind: ComputeKind) -> bool {
    matches!(kind, ComputeKind::Backward | ComputeKind::BackwardInput | ComputeKind::BackwardWeight)
}

/// The first stage and micro-batch without a forward, and where it would be expected: at the end of
/// the row that holds the stage, or of the last row.
fn first_gap(rows: &[Vec<Compute>], micro_batches: usize) -> (Compute, usize, usize) {
    let mut forwards: HashMap<Stage, Vec<MicroBatch>> = HashMap::new();
    for action in rows.iter().flatten().filter(|a| a.kind == ComputeKind::Forward) {
        forwards.entry(action.stage).or_default().push(action.micro_batch);
    }
    let mut stage = Stage::new(0);
    let micro_batch = loop {
        let mut present = forwards.remove(&stage).unwrap_or_default();
        present.sort_unstable();
        // The first index that isn't its own number is the gap.
        let gap =
            present.iter().enumerate().position(|(i, m)| m.index() != i).unwrap_or(present.len());
        if gap < micro_batches {
            break MicroBatch::new(gap);
        }
        stage = Stage::new(stage.index() + 1);
    };
    let rank = rows.iter().position(|row| row.iter().any(|a| a.stage == stage));
    let rank = rank.unwrap_or(rows.len() - 1);
    (Compute::forward(stage, micro_batch), rank, rows[rank].len())
}
