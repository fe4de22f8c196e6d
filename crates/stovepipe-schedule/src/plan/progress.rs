//! How far ranks get when each runs its actions in order: the deadlock check, and the slots of the
//! text grid. Times are the simulator's business.

use std::collections::VecDeque;

use crate::plan::grid::bad_cell;
use crate::words::action::Action;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::error::{Fault, PlanError};
use crate::words::ids::{Rank, Stage};
use crate::words::message::Direction;

/// Runs every rank as far as it gets, again whenever another rank wakes it, until nothing moves.
///
/// `advance(rank, wake)` lets one rank run until it blocks and wakes the ranks that its progress
/// may have freed. Linear in the number of wakes.
pub(crate) fn advance_until_still(
    ranks: usize,
    mut advance: impl FnMut(usize, &mut dyn FnMut(usize)),
) {
    let mut queue: VecDeque<usize> = (0..ranks).collect();
    let mut queued = vec![true; ranks];
    while let Some(rank) = queue.pop_front() {
        queued[rank] = false;
        advance(rank, &mut |other| {
            if !queued[other] {
                queued[other] = true;
                queue.push_back(other);
            }
        });
    }
}

/// The compute action on another stage whose result `action` needs, along the chain.
fn needed_stage(action: &Compute, stages: usize) -> Option<(Direction, Stage)> {
    match action.kind {
        ComputeKind::Forward => {
            let below = action.stage.index().checked_sub(1)?;
            Some((Direction::Forward, Stage::new(below)))
        }
        ComputeKind::Backward | ComputeKind::BackwardInput => {
            let above = action.stage.index() + 1;
            (above < stages).then(|| (Direction::Backward, Stage::new(above)))
        }
        ComputeKind::Recompute | ComputeKind::BackwardWeight => None,
    }
}

/// Whether the action produces what travels on, and in which direction.
fn produces(kind: ComputeKind) -> Option<Direction> {
    match kind {
        ComputeKind::Forward => Some(Direction::Forward),
        ComputeKind::Backward | ComputeKind::BackwardInput => Some(Direction::Backward),
        ComputeKind::Recompute | ComputeKind::BackwardWeight => None,
    }
}

/// The slot in which each action of the rows runs when every action takes one slot. Short rows
/// where they can't go on.
fn slots(rows: &[Vec<Compute>], placement: &[Rank], micro_batches: usize) -> Vec<Vec<usize>> {
    let stages = placement.len();
    let index = |direction: Direction, stage: Stage, m: usize| {
        (direction as usize * stages + stage.index()) * micro_batches + m
    };
    // The slot after the action; zero while it hasn't run.
    let mut ready = vec![0u32; 2 * stages * micro_batches];
    let mut slots: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
    advance_until_still(rows.len(), |rank, wake| {
        while let Some(action) = rows[rank].get(slots[rank].len()) {
            let m = action.micro_batch.index();
            let arrived = match needed_stage(action, stages) {
                None => 0,
                Some((direction, stage)) => match ready[index(direction, stage, m)] {
                    0 => return,
                    slot => slot as usize,
                },
            };
            let free = slots[rank].last().map_or(0, |slot| slot + 1);
            let slot = free.max(arrived);
            slots[rank].push(slot);
            if let Some(direction) = produces(action.kind) {
                ready[index(direction, action.stage, m)] = slot as u32 + 1;
                let next = match direction {
                    Direction::Forward => action.stage.index() + 1,
                    Direction::Backward => action.stage.index().wrapping_sub(1),
                };
                if let Some(owner) = placement.get(next) {
                    wake(owner.index());
                }
            }
        }
    });
    slots
}

/// The column of each action of a valid plan, and the number of columns: those of its slots, idle
/// ones between them. If that makes an absurdly large table, idle slots are left out.
pub(crate) fn columns(
    rows: &[Vec<Compute>],
    placement: &[Rank],
    micro_batches: usize,
) -> (Vec<Vec<usize>>, usize) {
    const MAX_CELLS: usize = 10_000_000;
    let slots = slots(rows, placement, micro_batches);
    let length = slots.iter().filter_map(|row| row.last()).max().map_or(0, |last| last + 1);
    if length.saturating_mul(rows.len()) <= MAX_CELLS {
        return (slots, length);
    }
    (rows.iter().map(|row| (0..row.len()).collect()).collect(), 0)
}

/// Refuses rows in which ranks wait for each other.
pub(crate) fn check_rows(
    rows: &[Vec<Compute>],
    placement: &[Rank],
    micro_batches: usize,
) -> Result<(), PlanError> {
    let reached: Vec<usize> = slots(rows, placement, micro_batches).iter().map(Vec::len).collect();
    refuse_stuck(rows, &reached, |action: Compute| {
        let (direction, stage) = needed_stage(&action, placement.len())?;
        let rank = placement[stage.index()].index();
        let gives = |other: &&Compute| {
            (other.stage, other.micro_batch) == (stage, action.micro_batch)
                && produces(other.kind) == Some(direction)
        };
        let needed = rows[rank].iter().find(gives)?;
        Some(format!("{action} waits for {needed}"))
    })
}

/// Refuses rows in which a rank hasn't come to its end, and says what some of them wait for.
pub(crate) fn refuse_stuck<A: Copy + Into<Action>>(
    rows: &[Vec<A>],
    reached: &[usize],
    waits_for: impl Fn(A) -> Option<String>,
) -> Result<(), PlanError> {
    const SHOWN: usize = 4;
    let stuck = || (0..rows.len()).filter(|&rank| reached[rank] < rows[rank].len());
    let Some(rank) = stuck().next() else {
        return Ok(());
    };
    let waits: Vec<String> = stuck()
        .take(SHOWN)
        .filter_map(|rank| {
            Some(format!("on rank {rank} {}", waits_for(rows[rank][reached[rank]])?))
        })
        .collect();
    let fault = Fault::Deadlock { waits: waits.join(", ") };
    Err(bad_cell(rows, rank, reached[rank], fault))
}
