//! Makes sure that rows of actions are complete, in order, and keep each stage on one rank. Whether
//! ranks wait for each other is looked for in `progress`.

use std::collections::{HashMap, HashSet};

use crate::plan::grid::bad_cell;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::{Fault, PlanError};
use crate::words::ids::{MicroBatch, Rank, Stage};
use crate::words::mode::Mode;
use crate::words::shape::{MAX_ACTIONS, Shape};

/// Facts about rows that are complete and in order.
pub(crate) struct Census {
    pub(crate) placement: Vec<Rank>,
    pub(crate) micro_batches: usize,
    pub(crate) mode: Mode,
}

impl Census {
    /// Checks the rows, and says what they are.
    pub(crate) fn take(rows: &[Vec<Compute>]) -> Result<Self, PlanError> {
        let (stages, micro_batches) = count(rows)?;
        let positions = Positions::note(rows, stages, micro_batches)?;
        let trains = rows.iter().flatten().any(|action| is_backward(action.kind));
        let mode = if trains { Mode::Training } else { Mode::ForwardOnly };
        // Stage and micro-batch by stage and micro-batch, in the order of the rows.
        for (rank, row) in rows.iter().enumerate() {
            for (position, action) in row.iter().enumerate() {
                positions
                    .check(*action, position, mode)
                    .map_err(|fault| bad_cell(rows, rank, position, fault))?;
            }
        }
        let placement = positions.into_placement().ok_or_else(|| gap(rows, micro_batches))?;
        Ok(Self { placement, micro_batches, mode })
    }
}

/// How many stages and micro-batches the rows name. Refuses rows that can't hold all their actions.
fn count(rows: &[Vec<Compute>]) -> Result<(usize, usize), PlanError> {
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
    let actions: usize = rows.iter().map(Vec::len).sum();
    if actions > MAX_ACTIONS {
        return Err(PlanError::TooLarge { shape: Shape::new(rows.len(), micro_batches) });
    }
    // A number that is far too high would make tables as large as it says; find the gap instead.
    if stages.checked_mul(micro_batches).is_none_or(|pairs| pairs > actions) {
        return Err(gap(rows, micro_batches));
    }
    Ok((stages, micro_batches))
}

/// Where each action stands, and each stage.
struct Positions {
    placement: Vec<Option<Rank>>,
    micro_batches: usize,
    /// By stage, micro-batch and kind: the position in the row plus one; zero means absent. A row
    /// is shorter than [`MAX_ACTIONS`].
    noted: Vec<u32>,
}

const KINDS: usize = ComputeKind::ALL.len();

impl Positions {
    /// Refuses doubled actions, and stages that are spread over ranks.
    fn note(rows: &[Vec<Compute>], stages: usize, micro_batches: usize) -> Result<Self, PlanError> {
        let noted = vec![0; stages * micro_batches * KINDS];
        let mut positions = Self { placement: vec![None; stages], micro_batches, noted };
        for (rank, row) in rows.iter().enumerate() {
            for (position, &action) in row.iter().enumerate() {
                let here = Rank::new(rank);
                let owner = *positions.placement[action.stage.index()].get_or_insert(here);
                if owner != here {
                    let fault = Fault::WrongRank { action: action.into(), rank: here, owner };
                    return Err(bad_cell(rows, rank, position, fault));
                }
                let slot = positions.slot(action.kind, action);
                if positions.noted[slot] != 0 {
                    return Err(bad_cell(rows, rank, position, Fault::Doubled(action.into())));
                }
                positions.noted[slot] = position as u32 + 1;
            }
        }
        Ok(positions)
    }

    fn slot(&self, kind: ComputeKind, Compute { stage, micro_batch, .. }: Compute) -> usize {
        (stage.index() * self.micro_batches + micro_batch.index()) * KINDS + kind as usize
    }

    /// Refuses an action if another one of its stage and micro-batch is missing, is one too many,
    /// or comes too late.
    fn check(&self, action: Compute, position: usize, mode: Mode) -> Result<(), Fault> {
        use ComputeKind::{Backward, BackwardInput, BackwardWeight, Forward, Recompute};
        let at = |kind| self.noted[self.slot(kind, action)] as usize;
        let sibling = |kind| Compute { kind, ..action }.into();
        let need = |kind| if at(kind) == 0 { Err(Fault::Missing(sibling(kind))) } else { Ok(()) };
        let after = |kind| {
            if at(kind) > position + 1 {
                return Err(Fault::OutOfOrder { early: action.into(), late: sibling(kind) });
            }
            Ok(())
        };
        let unneeded_if = |condition, why| {
            if condition { Err(Fault::Unneeded(action.into(), why)) } else { Ok(()) }
        };
        let whole = "the micro-batch has a whole backward on this stage";
        match action.kind {
            Forward => {
                let split = at(BackwardInput) != 0 || at(BackwardWeight) != 0;
                if mode == Mode::Training && !split { need(Backward) } else { Ok(()) }
            }
            Recompute => {
                need(Forward)?;
                after(Forward)?;
                let why = "nothing is recomputed without a backward";
                unneeded_if(mode == Mode::ForwardOnly, why)
            }
            Backward => {
                need(Forward)?;
                after(Forward)?;
                after(Recompute)
            }
            BackwardInput => {
                unneeded_if(at(Backward) != 0, whole)?;
                need(Forward)?;
                need(BackwardWeight)?;
                after(Forward)?;
                after(Recompute)
            }
            BackwardWeight => {
                unneeded_if(at(Backward) != 0, whole)?;
                need(BackwardInput)?;
                after(BackwardInput)
            }
        }
    }

    /// The rank of each stage; `None` if nothing in the rows mentions a stage, or one of its
    /// micro-batches.
    fn into_placement(self) -> Option<Vec<Rank>> {
        let mut pairs = self.noted.as_chunks::<KINDS>().0.iter();
        let complete = pairs.all(|kinds| kinds.iter().any(|&at| at != 0));
        self.placement.into_iter().collect::<Option<Vec<_>>>().filter(|_| complete)
    }
}

fn is_backward(kind: ComputeKind) -> bool {
    matches!(kind, ComputeKind::Backward | ComputeKind::BackwardInput | ComputeKind::BackwardWeight)
}

/// The error for rows that are too short: for the first action that is there twice, or for the
/// first stage and micro-batch without a forward. That is expected at the end of the row that holds
/// the stage, or of the last row.
fn gap(rows: &[Vec<Compute>], micro_batches: usize) -> PlanError {
    let mut seen = HashSet::new();
    for (rank, row) in rows.iter().enumerate() {
        if let Some(position) = row.iter().position(|action| !seen.insert(*action)) {
            return bad_cell(rows, rank, position, Fault::Doubled(row[position].into()));
        }
    }
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
    let missing = Compute::forward(stage, micro_batch).into();
    bad_cell(rows, rank, rows[rank].len(), Fault::Missing(missing))
}
