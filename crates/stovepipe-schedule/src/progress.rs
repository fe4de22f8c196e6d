//! How far ranks get when each runs its actions in order: the deadlock checks, and the slots of the
//! text grid. Times are the simulator's business.

use std::collections::VecDeque;

use crate::grid::{Mark, cell_grid};
use crate::{
    Action, Compute, ComputeKind, Direction, Fault, Message, Plan, PlanError, Rank, Stage,
};

/// Runs every rank as far as it gets, again whenever another rank wakes it, until nothing moves.
///
/// `advance(rank, wake)` lets one rank run until it blocks and wakes the ranks that its progress may
/// have freed. Linear in the number of wakes.
pub(crate) fn settle(ranks: usize, mut advance: impl FnMut(usize, &mut dyn FnMut(usize))) {
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

/// The slot in which each action runs when every action takes one slot. Short rows where a plan
/// can't go on.
pub(crate) fn slots(plan: &Plan) -> Vec<Vec<usize>> {
    let (stages, micro_batches) = (plan.stages(), plan.micro_batches());
    let index = |direction: Direction, stage: Stage, m: usize| {
        (direction as usize * stages + stage.index()) * micro_batches + m
    };
    // The slot after the action; zero while it hasn't run.
    let mut ready = vec![0u32; 2 * stages * micro_batches];
    let mut slots: Vec<Vec<usize>> = vec![Vec::new(); plan.ranks()];
    settle(plan.ranks(), |rank, wake| {
        while let Some(action) = plan.row(rank).get(slots[rank].len()) {
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
                if let Some(owner) = plan.placement().get(next) {
                    wake(owner.index());
                }
            }
        }
    });
    slots
}

/// Refuses a plan in which ranks wait for each other.
pub(crate) fn check_plan(plan: &Plan) -> Result<(), PlanError> {
    let reached: Vec<usize> = slots(plan).iter().map(Vec::len).collect();
    refuse_stuck(plan.rows(), &reached, |action: Compute| {
        let (direction, stage) = needed_stage(&action, plan.stages())?;
        let rank = plan.placement()[stage.index()].index();
        let gives = |other: &&Compute| {
            (other.stage, other.micro_batch) == (stage, action.micro_batch)
                && produces(other.kind) == Some(direction)
        };
        let needed = plan.row(rank).iter().find(gives)?;
        Some(format!("{action} waits for {needed}"))
    })
}

/// Refuses program rows in which ranks wait for each other when a send blocks its rank while
/// `in_flight` earlier messages to the same rank haven't been taken (0: until the receiver is there).
pub(crate) fn check_program(
    rows: &[Vec<Action>],
    placement: &[Rank],
    in_flight: Option<usize>,
) -> Result<(), PlanError> {
    let ranks = rows.len();
    let limit = in_flight.unwrap_or(usize::MAX);
    let mut next = vec![0; ranks];
    let mut under_way: Vec<std::collections::HashSet<Message>> = vec![Default::default(); ranks];
    // Messages on the way from one rank to another.
    let mut outstanding = std::collections::HashMap::<(usize, usize), usize>::new();
    let owner = |stage: Stage| placement[stage.index()].index();
    settle(ranks, |rank, wake| {
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

fn refuse_stuck<A: Copy + Into<Action>>(
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
    let position = reached[rank];
    Err(PlanError::Cell {
        fault: Fault::Deadlock { waits: waits.join(", ") },
        rank: Rank::new(rank),
        position,
        grid: cell_grid(rows, Some(Mark { rank, position, missing: None })),
    })
}
