//! The simulator: finds out when each action of a program starts and ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::program::Program;
use crate::simulator::cost::CostModel;
use crate::simulator::timeline::{Span, Timeline};
use crate::simulator::wires::{Arrivals, Wires};
use crate::words::action::Action;
use crate::words::error::CostError;
use crate::words::ids::Stage;
use crate::words::mode::Mode;

/// Plays a program against costs: an action starts when its rank is free and its inputs have
/// arrived.
///
/// A message occupies the link between its two ranks for the transfer time, one message after the
/// other in each direction, and arrives after the latency. Between [nodes](CostModel::with_nodes)
/// it occupies their cards as well, in the order in which messages are ready. What it takes of its
/// ranks themselves belongs to their send and receive. The update starts when every rank has ended
/// its program and all have agreed. Time and memory grow linearly with the number of actions.
///
/// # Errors
///
/// [`CostError`] for costs of another number of stages or ranks, negative or non-finite ones, a sum
/// that overflows, and a limit of waiting messages under which ranks wait for each other.
pub fn simulate(program: &Program, costs: &CostModel) -> Result<Timeline, CostError> {
    let plan = program.plan();
    let ranks = plan.ranks();
    costs.check(plan.stages(), ranks)?;
    let mut run = Run::new(program, costs);
    run.play();
    let Run { clock, spans, .. } = run;
    // A program is free of deadlocks where messages queue up without a limit.
    let stuck = (0..ranks).find(|&rank| spans[rank].len() < program.row(rank).len());
    if let Some((rank, limit)) = stuck.zip(costs.queue_limit()) {
        return Err(CostError::QueueLimit { limit, rank });
    }
    let agreed = clock.iter().copied().fold(0.0, f64::max) + costs.gathers();
    let update = |rank: usize| -> f64 {
        plan.stages_of(rank).iter().map(|stage| costs.stages()[stage.index()].update).sum()
    };
    let updates = (0..ranks)
        .map(|rank| (plan.mode() == Mode::Training).then(|| agreed..agreed + update(rank)))
        .collect();
    let timeline = Timeline::new(spans, updates);
    let busy: f64 = (0..ranks).map(|rank| timeline.busy(rank)).sum();
    let total = timeline.makespan() * ranks as f64;
    if busy.is_finite() && total.is_finite() { Ok(timeline) } else { Err(CostError::Overflow) }
}

/// A time at which a rank may go on; times have a total order.
type Moment = (Reverse<OrderedTime>, Reverse<usize>);

#[derive(Clone, Copy, PartialEq)]
struct OrderedTime(f64);

impl Eq for OrderedTime {}

impl PartialOrd for OrderedTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedTime {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The state of a simulation.
struct Run<'a> {
    program: &'a Program,
    costs: &'a CostModel,
    clock: Vec<f64>,
    spans: Vec<Vec<Span>>,
    arrivals: Arrivals<'a>,
    wires: Wires<'a>,
    /// The ranks that aren't known to be blocked, each with a time before which it does nothing.
    moving: BinaryHeap<Moment>,
    blocked: Vec<bool>,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, costs: &'a CostModel) -> Self {
        let ranks = program.plan().ranks();
        Self {
            program,
            costs,
            clock: vec![0.0; ranks],
            spans: (0..ranks).map(|rank| Vec::with_capacity(program.row(rank).len())).collect(),
            arrivals: Arrivals::new(program),
            wires: Wires::new(costs),
            moving: (0..ranks).map(|rank| Self::moment(0.0, rank)).collect(),
            blocked: vec![false; ranks],
        }
    }

    fn moment(time: f64, rank: usize) -> Moment {
        (Reverse(OrderedTime(time)), Reverse(rank))
    }

    /// Lets the rank that is furthest behind run until it blocks, or until it would have to know
    /// what others send before; until none can go on.
    fn play(&mut self) {
        while let Some((_, Reverse(rank))) = self.moving.pop() {
            self.blocked[rank] = !self.advance(rank);
        }
    }

    /// Lets a rank go on where it was blocked, at `time` or later.
    fn wake(&mut self, rank: usize, time: f64) {
        if std::mem::take(&mut self.blocked[rank]) {
            self.moving.push(Self::moment(self.clock[rank].max(time), rank));
        }
    }

    /// Runs a rank; false if it waits for another.
    fn advance(&mut self, rank: usize) -> bool {
        let owner = |stage: Stage| self.program.rank_of(stage).index();
        while let Some(&action) = self.program.row(rank).get(self.spans[rank].len()) {
            let start = self.clock[rank];
            let end = match action {
                Action::Compute(compute) => start + self.costs.time(compute),
                Action::Send(message) => {
                    let to = owner(message.to);
                    let edge = message.edge();
                    let (link, handling) = (self.costs.link(edge), self.costs.handling(edge));
                    let Some(room) = self.wires.room(rank, to) else { return false };
                    let ready = start.max(room) + handling.send;
                    // Through a shared card messages go in the order in which they are ready.
                    let earlier = self.moving.peek().is_some_and(|next| next.0.0.0 < ready);
                    if earlier && self.wires.are_shared(rank, to) {
                        self.moving.push(Self::moment(ready, rank));
                        return true;
                    }
                    let sent = self.wires.send(rank, to, ready, link.transfer);
                    let arrival = sent + link.latency;
                    self.arrivals.set(message, arrival);
                    self.wake(to, arrival);
                    if self.costs.blocking_sends() { sent } else { ready }
                }
                Action::Recv(message) => {
                    let Some(arrival) = self.arrivals.get(message) else { return false };
                    let taken = arrival.max(start);
                    if self.costs.queue_limit().is_some() {
                        let from = owner(message.from);
                        self.wires.take(from, rank, taken);
                        self.wake(from, taken);
                    }
                    taken + self.costs.handling(message.edge()).receive
                }
            };
            self.clock[rank] = end;
            self.spans[rank].push(Span { action, start, end });
        }
        true
    }
}
