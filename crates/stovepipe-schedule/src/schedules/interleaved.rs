//! Interleaved 1F1B: several stages on each rank (Megatron-LM, arXiv 2104.04473, section 2.2).

use std::ops::Range;

use crate::plan::Plan;
use crate::schedules::named::NamedSchedule;
use crate::schedules::schedule::Schedule;
use crate::words::compute::Compute;
use crate::words::error::PlanError;
use crate::words::ids::{MicroBatch, Stage};
use crate::words::shape::Shape;

/// 1F1B with V stages on each rank: stage s lives on rank s modulo P.
///
/// ```text
/// rank 0 | 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1  .  2B2  .  2B3 0B2 0B3
/// rank 1 |  .  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3  .
/// ```
///
/// Micro-batches come in rounds of about P, each of which passes one stage after the other: M/P
/// rounds (at least one) whose sizes differ by at most one. So M needn't be a multiple of P.
///
/// With uniform costs, F and B for a whole rank, and P dividing M, each rank idles (P−1)(F+B)/V:
/// the bubble is V times smaller than in 1F1B, for V times the messages. With V ≥ 2, rank 0 keeps
/// VP+P−1 stages' activations, each rank after it two fewer (never more than VM). Any P, V and M;
/// with V = 1 it is 1F1B, whose rank r keeps P−r.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interleaved1F1B;

impl Schedule for Interleaved1F1B {
    fn name(&self) -> &str {
        "interleaved-1f1b"
    }

    fn default_stages_per_rank(&self) -> usize {
        2
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check()?;
        let Shape { ranks, stages_per_rank, micro_batches } = shape;
        let rounds = rounds(ranks, micro_batches);
        let work = stages_per_rank * micro_batches;
        Plan::new((0..ranks).map(|rank| {
            let stage = |local| Stage::new(local * ranks + rank);
            let forwards: Vec<Compute> = in_rounds(&rounds, |round| {
                (0..stages_per_rank).flat_map(move |c| round.clone().map(move |m| (c, m)))
            })
            .map(|(c, m)| Compute::forward(stage(c), m))
            .collect();
            let backwards = in_rounds(&rounds, |round| {
                (0..stages_per_rank).rev().flat_map(move |c| round.clone().map(move |m| (c, m)))
            })
            .map(|(c, m)| Compute::backward(stage(c), m));
            // Two for each later rank: a micro-batch passes them once up and once down.
            let after = ranks - 1 - rank;
            let ahead = if stages_per_rank == 1 {
                after
            } else {
                (stages_per_rank - 1) * rounds[0].len() + 2 * after
            };
            let ahead = ahead.min(work);
            let mut row = Vec::with_capacity(2 * work);
            row.extend(&forwards[..ahead]);
            for (i, backward) in backwards.enumerate() {
                row.extend(forwards.get(ahead + i));
                row.push(backward);
            }
            row
        }))
    }
}

/// As many rounds as the ranks can be filled in, of nearly equal size. The larger ones come first:
/// the forwards that are ahead in the first round have to suffice for all.
fn rounds(ranks: usize, micro_batches: usize) -> Vec<Range<usize>> {
    let rounds = (micro_batches / ranks).max(1);
    let (size, larger) = (micro_batches / rounds, micro_batches % rounds);
    let start = |round: usize| round * size + round.min(larger);
    (0..rounds).map(|round| start(round)..start(round + 1)).collect()
}

/// The pairs of the rank's stage and micro-batch that `each` makes of every round, round after
/// round.
fn in_rounds<I: Iterator<Item = (usize, usize)>>(
    rounds: &[Range<usize>],
    each: impl Fn(Range<usize>) -> I,
) -> impl Iterator<Item = (usize, MicroBatch)> {
    rounds.iter().cloned().flat_map(each).map(|(local, m)| (local, MicroBatch::new(m)))
}

/// The entry in the list of schedules.
pub(super) const NAMED: NamedSchedule = NamedSchedule {
    name: "interleaved-1f1b",
    summary: "Runs 1F1B with several stages on each rank: a smaller bubble for more messages.",
    tuned: true,
    make: || Box::new(Interleaved1F1B),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_documented_one() {
        let plan = Interleaved1F1B.plan(Shape::new(2, 4).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1  .  2B2  .  2B3 0B2 0B3
rank 1 |  .  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3  .
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn three_micro_batches_make_one_round() {
        let plan = Interleaved1F1B.plan(Shape::new(2, 3).with_stages_per_rank(2)).expect("a plan");
        let grid = "\
rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2 2B0  .  2B1  .  2B2 0B0 0B1 0B2
rank 1 |  .  1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2  .
";
        assert_eq!(plan.to_string(), grid);
    }

    #[test]
    fn rounds_differ_by_at_most_one() {
        assert_eq!(rounds(4, 8), [0..4, 4..8]);
        assert_eq!(rounds(4, 11), [0..6, 6..11]);
        assert_eq!(rounds(4, 3).last(), Some(&(0..3)));
    }

    #[test]
    fn one_stage_per_rank_is_1f1b() {
        let shape = Shape::new(4, 6);
        assert_eq!(Interleaved1F1B.plan(shape), crate::OneFOneB.plan(shape));
    }
}
