//! Where messages are: on wires between ranks, in the cards of nodes, or there.

use std::collections::HashMap;

use crate::program::Program;
use crate::simulator::cost::CostModel;
use crate::words::message::{Direction, Message};

/// The messages from one rank to another.
#[derive(Default)]
struct Wire {
    /// When the link is free again.
    free: f64,
    sent: usize,
    /// When messages were taken, in order; noted only where their number is limited.
    taken: Vec<f64>,
}

/// When a node's card has sent, and has received, all that it was given.
#[derive(Clone, Copy, Default)]
struct Card {
    sends: f64,
    receives: f64,
}

/// All wires and cards.
pub(super) struct Wires<'a> {
    costs: &'a CostModel,
    wires: HashMap<(usize, usize), Wire>,
    cards: Vec<Card>,
}

impl<'a> Wires<'a> {
    pub(super) fn new(costs: &'a CostModel) -> Self {
        let nodes = costs.nodes().iter().max().map_or(0, |last| last + 1);
        Self { costs, wires: HashMap::new(), cards: vec![Card::default(); nodes] }
    }

    /// The nodes of two ranks, if a message between them passes through cards.
    fn cards_between(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let nodes = self.costs.nodes();
        let (from, to) = (*nodes.get(from)?, *nodes.get(to)?);
        (from != to).then_some((from, to))
    }

    /// Whether a message from one rank to another may have to wait for those of other ranks.
    pub(super) fn are_shared(&self, from: usize, to: usize) -> bool {
        self.cards_between(from, to).is_some()
    }

    /// When there is room for another message; none if that isn't known yet.
    pub(super) fn room(&mut self, from: usize, to: usize) -> Option<f64> {
        let Some(limit) = self.costs.queue_limit() else { return Some(0.0) };
        let wire = self.wires.entry((from, to)).or_default();
        match wire.sent.checked_sub(limit) {
            Some(before) => wire.taken.get(before).copied(),
            None => Some(0.0),
        }
    }

    /// Sends a message that is `ready`, and returns when its last byte has left.
    pub(super) fn send(&mut self, from: usize, to: usize, ready: f64, transfer: f64) -> f64 {
        let cards = self.cards_between(from, to);
        let wire = self.wires.entry((from, to)).or_default();
        let mut start = wire.free.max(ready);
        if let Some((from, to)) = cards {
            start = start.max(self.cards[from].sends).max(self.cards[to].receives);
            (self.cards[from].sends, self.cards[to].receives) =
                (start + transfer, start + transfer);
        }
        (wire.free, wire.sent) = (start + transfer, wire.sent + 1);
        wire.free
    }

    /// Notes that a message was taken, where the number of those that wait is limited.
    pub(super) fn take(&mut self, from: usize, to: usize, taken: f64) {
        self.wires.entry((from, to)).or_default().taken.push(taken);
    }
}

/// When each message arrives, by edge, direction and micro-batch.
pub(super) struct Arrivals<'a> {
    program: &'a Program,
    /// Not a number until the message is sent.
    times: Vec<f64>,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(program: &'a Program) -> Self {
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

    pub(super) fn set(&mut self, message: Message, time: f64) {
        if let Some(index) = self.index(message) {
            self.times[index] = time;
        }
    }

    pub(super) fn get(&self, message: Message) -> Option<f64> {
        self.index(message).map(|index| self.times[index]).filter(|time| !time.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        CostModel, Edge, Edges, ForwardOnly, GPipe, Handling, Link, Program, Retention, Schedule,
        Shape, Stage, simulate,
    };

    fn forwards(ranks: usize, micro_batches: usize) -> Program {
        let plan = ForwardOnly.plan(Shape::new(ranks, micro_batches)).expect("a plan");
        Program::lower(&plan, &Edges::chain(ranks), &Retention::keep_all(&plan)).expect("lowers")
    }

    #[test]
    fn handling_takes_its_ranks_time() {
        let program = forwards(2, 3);
        let costs = CostModel::uniform(2, 1.0, 0.0);
        let handling = Handling { send: 0.25, receive: 0.5 };
        let timeline = simulate(&program, &costs.clone().with_handling(handling));
        // The second rank is the slower one: it takes and computes three times.
        assert_eq!(timeline.expect("simulates").makespan(), 1.25 + 3.0 * 1.5);
        let edge = Edge { from: Stage::new(0), to: Stage::new(1) };
        let own = costs.with_edge_handling(edge, handling);
        assert_eq!(simulate(&program, &own).expect("simulates").makespan(), 1.25 + 3.0 * 1.5);
        let negative = own.with_handling(Handling { send: -1.0, receive: 0.0 });
        let error = simulate(&program, &negative).expect_err("refused").to_string();
        assert!(error.contains("the time for sending is -1"), "{error}");
    }

    #[test]
    fn ranks_of_a_node_share_its_card() {
        // Skips from the first two ranks to the last two: all pass between the nodes.
        let s = Stage::new;
        let plan = ForwardOnly.plan(Shape::new(4, 1)).expect("a plan");
        let edges = Edges::chain(4).with_skip(s(0), s(2)).and_then(|e| e.with_skip(s(0), s(3)));
        let edges = edges.and_then(|e| e.with_skip(s(1), s(3))).expect("skips");
        let program = Program::lower(&plan, &edges, &Retention::keep_all(&plan)).expect("lowers");
        let link = Link { latency: 0.0, transfer: 10.0 };
        let costs = CostModel::uniform(4, 1.0, 0.0).with_link(link);
        // Each on a wire of its own: F, to the next, three times over.
        assert_eq!(simulate(&program, &costs).expect("simulates").makespan(), 4.0 + 30.0);
        // Two of rank 0 leave from 1 to 21, then both of rank 1 to 31 and 41; then 2 to 3.
        let shared = costs.clone().with_nodes([0, 0, 1, 1]);
        let timeline = simulate(&program, &shared).expect("simulates");
        assert_eq!(timeline.spans(2).last().map(|span| span.end), Some(32.0 + 0.0));
        assert_eq!(timeline.makespan(), 31.0 + 1.0 + 10.0 + 1.0);
        // Nodes of one rank each have a card to themselves, but each its own messages share it.
        let apart = costs.with_nodes([0, 1, 2, 3]);
        assert!(simulate(&program, &apart).expect("simulates").makespan() >= 34.0);
    }

    #[test]
    fn cards_serve_in_the_order_in_which_messages_are_ready() {
        // In both directions at once, a chain over two nodes is as fast as without cards: each
        // direction of the only pair of ranks that crosses has a card to itself.
        let plan = GPipe::default().plan(Shape::new(4, 6)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(4), &Retention::keep_all(&plan));
        let program = program.expect("lowers");
        let link = Link { latency: 0.25, transfer: 1.5 };
        let costs = CostModel::uniform(4, 1.0, 2.0).with_link(link);
        let alone = simulate(&program, &costs).expect("simulates");
        let shared = simulate(&program, &costs.clone().with_nodes([0, 0, 1, 1]));
        assert_eq!(shared.expect("simulates"), alone);
        let error = simulate(&program, &costs.with_nodes([0, 1])).expect_err("two nodes");
        assert!(error.to_string().contains("nodes are given for 2 ranks"), "{error}");
    }

    #[test]
    fn ranks_agree_before_they_update() {
        let plan = GPipe::default().plan(Shape::new(2, 2)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan));
        let costs = CostModel::uniform(2, 1.0, 1.0).with_gathers(0.5);
        let timeline = simulate(&program.expect("lowers"), &costs).expect("simulates");
        assert_eq!((timeline.makespan(), timeline.update(0)), (6.5, Some(6.5..6.5)));
    }
}
