//! The simulator: when does each action of a program start and end?

use std::collections::HashMap;

use crate::progress::settle;
use crate::{Action, CostError, CostModel, Message, Program, Span, Stage, Timeline};

/// Plays a program against costs: an action starts when its rank is free and its inputs have arrived.
///
/// A send costs its rank nothing; its message occupies the link between the two ranks for the
/// transfer time, one message after the other, and arrives after the latency. The update starts when
/// every rank has ended its program. Time and memory grow linearly with the number of actions.
///
/// # Errors
///
/// [`CostError`] for costs of another number of stages, negative or non-finite ones, and a sum that
/// overflows.
pub fn simulate(program: &Program, costs: &CostModel) -> Result<Timeline, CostError> {
    let plan = program.plan();
    costs.check(plan.stages())?;
    let ranks = plan.ranks();
    let owner = |stage: Stage| program.rank_of(stage).index();
    let link = costs.link();
    let mut clock = vec![0.0f64; ranks];
    let mut spans: Vec<Vec<Span>> =
        (0..ranks).map(|rank| Vec::with_capacity(program.row(rank).len())).collect();
    let mut arrivals: HashMap<Message, f64> = HashMap::new();
    let mut link_free: HashMap<(usize, usize), f64> = HashMap::new();

    settle(ranks, |rank, wake| {
        while let Some(&action) = program.row(rank).get(spans[rank].len()) {
            let start = clock[rank];
            let end = match action {
                Action::Compute(compute) => start + costs.time(compute),
                Action::Send(message) => {
                    let to = owner(message.to);
                    let free = link_free.entry((rank, to)).or_default();
                    let sent = free.max(start) + link.transfer;
                    *free = sent;
                    arrivals.insert(message, sent + link.latency);
                    wake(to);
                    start
                }
                Action::Recv(message) => match arrivals.remove(&message) {
                    Some(arrival) => arrival.max(start),
                    None => return,
                },
            };
            clock[rank] = end;
            spans[rank].push(Span { action, start, end });
        }
    });

    let flushed = clock.iter().copied().fold(0.0, f64::max);
    let update = |rank: usize| -> f64 {
        plan.stages_of(rank).iter().map(|s| costs.stages()[s.index()].update).sum()
    };
    let updates = (0..ranks)
        .map(|rank| (plan.mode() == crate::Mode::Training).then(|| flushed..flushed + update(rank)))
        .collect();
    let timeline = Timeline::new(spans, updates);
    if timeline.makespan().is_finite() { Ok(timeline) } else { Err(CostError::Overflow) }
}
