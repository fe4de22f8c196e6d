//! The simulator: finds out when each action of a program starts and ends.

use std::collections::HashMap;

use crate::plan::progress::advance_until_still;
use crate::program::Program;
use crate::simulator::cost::CostModel;
use crate::simulator::timeline::{Span, Timeline};
use crate::words::action::Action;
use crate::words::error::CostError;
use crate::words::ids::Stage;
use crate::words::message::{Direction, Message};
use crate::words::mode::Mode;

/// Plays a program against costs: an action starts when its rank is free and its inputs have
/// arrived.
///
/// A message occupies the link between its two ranks for the transfer time, one message after the
/// other in each direction, and arrives after the latency. What it takes of its ranks themselves
/// belongs to their send and receive. The update starts when every rank has ended its program. Time
/// and memory grow linearly with the number of actions.
///
/// # Errors
///
/// [`CostError`] for costs of another number of stages, negative or non-finite ones, a sum that
/// overflows, and a limit of waiting messages under which ranks wait for each other.
pub fn simulate(program: &Program, costs: &CostModel) -> Result<Timeline, CostError> {
    let plan = program.plan();
    costs.check(plan.stages())?;
    let ranks = plan.ranks();
    let owner = |stage: Stage| program.rank_of(stage).index();
    let mut clock = vec![0.0f64; ranks];
    let mut spans: Vec<Vec<Span>> =
        (0..ranks).map(|rank| Vec::with_capacity(program.row(rank).len())).collect();
    let mut arrivals = Arrivals::new(program);
    let mut wires: HashMap<(usize, usize), Wire> = HashMap::new();

    advance_until_still(ranks, |rank, wake| {
        while let Some(&action) = program.row(rank).get(spans[rank].len()) {
            let start = clock[rank];
            let end = match action {
                Action::Compute(compute) => start + costs.time(compute),
                Action::Send(message) => {
                    let to = owner(message.to);
                    let (link, handling) =
                        (costs.link(message.edge()), costs.handling(message.edge()));
                    let wire = wires.entry((rank, to)).or_default();
                    let Some(room) = wire.room(costs.queue_limit()) else { return };
                    let ready = start.max(room) + handling.send;
                    let sent = wire.free.max(ready) + link.transfer;
                    (wire.free, wire.sent) = (sent, wire.sent + 1);
                    arrivals.set(message, sent + link.latency);
                    wake(to);
                    if costs.blocking_sends() { sent } else { ready }
                }
                Action::Recv(message) => {
                    let Some(arrival) = arrivals.get(message) else { return };
                    let taken = arrival.max(start);
                    if costs.queue_limit().is_some() {
                        let from = owner(message.from);
                        wires.entry((from, rank)).or_default().taken.push(taken);
                        wake(from);
                    }
                    taken + costs.handling(message.edge()).receive
                }
            };
            clock[rank] = end;
            spans[rank].push(Span { action, start, end });
        }
    });

    // A program is free of deadlocks where messages queue up without a limit.
    let stuck = (0..ranks).find(|&rank| spans[rank].len() < program.row(rank).len());
    if let Some((rank, limit)) = stuck.zip(costs.queue_limit()) {
        return Err(CostError::QueueLimit { limit, rank });
    }
    let flushed = clock.iter().copied().fold(0.0, f64::max);
    let update = |rank: usize| -> f64 {
        plan.stages_of(rank).iter().map(|stage| costs.stages()[stage.index()].update).sum()
    };
    let updates = (0..ranks)
        .map(|rank| (plan.mode() == Mode::Training).then(|| flushed..flushed + update(rank)))
        .collect();
    let timeline = Timeline::new(spans, updates);
    let busy: f64 = (0..ranks).map(|rank| timeline.busy(rank)).sum();
    let total = timeline.makespan() * ranks as f64;
    if busy.is_finite() && total.is_finite() { Ok(timeline) } else { Err(CostError::Overflow) }
}

/// The messages from one rank to another.
#[derive(Default)]
struct Wire {
    /// When the link is free again.
    free: f64,
    sent: usize,
    /// When messages were taken, in order; noted only where their number is limited.
    taken: Vec<f64>,
}

impl Wire {
    /// When there is room for another message; none if that isn't known yet.
    fn room(&self, limit: Option<usize>) -> Option<f64> {
        match limit.and_then(|limit| self.sent.checked_sub(limit)) {
            Some(before) => self.taken.get(before).copied(),
            None => Some(0.0),
        }
    }
}

/// When each message arrives, by edge, direction and micro-batch.
struct Arrivals<'a> {
    program: &'a Program,
    /// Not a number until the message is sent.
    times: Vec<f64>,
}

impl<'a> Arrivals<'a> {
    fn new(program: &'a Program) -> Self {
        let messages = 2 * program.edges().len() * program.plan().micro_batches();
        Self { program, times: vec![f64::NAN; messages] }
    }

    /// The index of a message's time. A program holds no message without an edge.
    fn index(&self, message: Message) -> Option<usize> {
        let edge = self.program.edges().index(message.edge())?;
        let way = usize::from(message.direction == Direction::Backward);
        let line = 2 * edge + way;
        Some(line * self.program.plan().micro_batches() + message.micro_batch.index())
    }

    fn set(&mut self, message: Message, time: f64) {
        if let Some(index) = self.index(message) {
            self.times[index] = time;
        }
    }

    fn get(&self, message: Message) -> Option<f64> {
        self.index(message).map(|index| self.times[index]).filter(|time| !time.is_nan())
    }
}
