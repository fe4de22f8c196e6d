//! [`Queues`]: the values that wait on each rank, and the memory they take.

use std::collections::HashMap;

use crate::program::Program;
use crate::program::memory::StageMemory;
use crate::simulator::timeline::Timeline;
use crate::words::action::Action;
use crate::words::message::{Direction, Message};

/// The values that wait on each rank over time: sent by another rank, and not yet taken by the
/// receive that the program has for them.
#[derive(Clone, PartialEq, Debug)]
pub struct Queues(Vec<Vec<(f64, u64)>>);

impl Queues {
    /// For each moment at which it changes, what waits on a rank from then on; first to last.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn of(&self, rank: usize) -> &[(f64, u64)] {
        &self.0[rank]
    }

    /// The most that waits on a rank at once.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn most(&self, rank: usize) -> u64 {
        self.0[rank].iter().map(|&(_, waiting)| waiting).max().unwrap_or(0)
    }
}

impl Timeline {
    /// The values that wait on each rank. `weight` says how much a message counts: 1 for their
    /// number, its size for their bytes.
    #[must_use]
    pub fn queues(&self, weight: impl Fn(&Message) -> u64) -> Queues {
        // For each pair of stages and direction, when the message of each micro-batch was sent.
        let mut lines: HashMap<_, Vec<Option<f64>>> = HashMap::new();
        for span in (0..self.ranks()).flat_map(|rank| self.spans(rank)) {
            if let Action::Send(message) = span.action {
                let m = message.micro_batch.index();
                let line = lines.entry((message.direction, message.from, message.to)).or_default();
                line.resize(line.len().max(m + 1), None);
                line[m] = Some(span.end);
            }
        }
        let of_rank = |rank: usize| {
            let mut changes: Vec<(f64, bool, u64)> = Vec::new();
            for span in self.spans(rank) {
                let Action::Recv(message) = span.action else { continue };
                let line = lines.get(&(message.direction, message.from, message.to));
                let sent = line.and_then(|line| line.get(message.micro_batch.index()).copied());
                if let Some(sent) = sent.flatten() {
                    let weight = weight(&message);
                    changes.extend([(sent, true, weight), (span.end, false, weight)]);
                }
            }
            // Those that are taken at a time make room for those that are sent then, also where
            // that is the same one.
            changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let mut waiting = 0i128;
            let levels = changes.into_iter().map(|(time, arrives, weight)| {
                waiting += if arrives { i128::from(weight) } else { -i128::from(weight) };
                (time, u64::try_from(waiting.max(0)).unwrap_or(u64::MAX))
            });
            levels.collect()
        };
        Queues((0..self.ranks()).map(of_rank).collect())
    }

    /// The most bytes that each rank holds at once, as [`Program::peak_bytes`] counts them, with
    /// all values that wait. The timeline must be one of this program.
    ///
    /// # Panics
    ///
    /// If the program has more ranks than the timeline, and as [`Program::peak_bytes`].
    #[must_use]
    pub fn peak_bytes(&self, program: &Program, stages: &[StageMemory]) -> Vec<u64> {
        // Values on skip connections aren't known.
        let bytes = |message: &Message| match message.direction {
            _ if !message.is_between_neighbours() => 0,
            Direction::Forward => stages[message.to.index()].input(),
            Direction::Backward => stages[message.to.index()].output(),
        };
        let queues = self.queues(bytes);
        let ranks = 0..program.plan().ranks();
        let peak = |rank: usize| {
            let mut changes = queues.of(rank).iter().copied().peekable();
            let mut waiting = 0;
            let most_during = self.spans(rank).iter().map(|span| {
                let mut most = waiting;
                while let Some((_, after)) = changes.next_if(|(time, _)| *time <= span.end) {
                    waiting = after;
                    most = most.max(after);
                }
                most
            });
            program.peak_bytes_beside(rank, stages, &most_during.collect::<Vec<u64>>())
        };
        ranks.map(peak).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        CostModel, Edges, ForwardOnly, Plan, Program, Retention, Schedule, Shape, StageCost,
        StageMemory, simulate,
    };

    fn forwards(micro_batches: usize) -> Program {
        let plan = ForwardOnly.plan(Shape::new(2, micro_batches)).expect("a plan");
        Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan)).expect("lowers")
    }

    #[test]
    fn values_queue_up_before_a_slow_rank_unless_that_is_limited() {
        let program = forwards(64);
        let costs = CostModel::new([StageCost::new(1.0, 0.0), StageCost::new(51.0, 0.0)].to_vec());
        let free = simulate(&program, &costs).expect("simulates");
        let queues = free.queues(|_| 1);
        // While the slow rank works on the first, the others arrive.
        assert_eq!((queues.most(0), queues.most(1)), (0, 62));
        assert_eq!(queues.of(1).last(), Some(&(1.0 + 63.0 * 51.0, 0)));
        // They take memory, beside the one that is computed on.
        let stages = vec![StageMemory::whole(0, 1000); 2];
        assert_eq!(free.peak_bytes(&program, &stages), [1000, 63_000]);
        for limit in [1, 3] {
            let limited = costs.clone().with_queue_limit(limit);
            let bounded = simulate(&program, &limited).expect("simulates");
            assert_eq!(bounded.queues(|_| 1).most(1), limit as u64);
            // The slow rank never waits for it.
            assert_eq!(bounded.makespan(), free.makespan());
            assert_eq!(bounded.peak_bytes(&program, &stages)[1], 1000 * (limit as u64 + 1));
        }
    }

    #[test]
    fn a_limit_that_ranks_wait_for_is_an_error() {
        // Both send twice before they take anything.
        let rows = ["0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"];
        let plan = Plan::parse(rows.map(str::split_whitespace)).expect("valid");
        let program =
            Program::lower(&plan, &Edges::chain(4), &Retention::keep_all(&plan)).expect("lowers");
        let costs = CostModel::uniform(4, 1.0, 2.0);
        simulate(&program, &costs).expect("simulates");
        for limit in 1..4 {
            match simulate(&program, &costs.clone().with_queue_limit(limit)) {
                Ok(timeline) => {
                    let queues = timeline.queues(|_| 1);
                    assert!((0..2).all(|rank| queues.most(rank) <= limit as u64));
                }
                Err(error) => assert!(error.to_string().contains("waits for ever"), "{error}"),
            }
        }
    }
}
