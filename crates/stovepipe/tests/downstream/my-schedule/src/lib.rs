//! A schedule that knows nothing of stovepipe except `stovepipe-schedule`.

use stovepipe_schedule::{Compute, MicroBatch, Plan, PlanError, Schedule, Shape, Stage};

/// Fills and drains in rounds of as many micro-batches as there are ranks, which bounds the kept
/// activations by the number of ranks.
pub struct Rounds;

impl Schedule for Rounds {
    fn name(&self) -> &str {
        "rounds"
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        shape.check_stages_per_rank(self.name(), 1)?;
        Plan::new(Stage::first(shape.ranks).map(|stage| {
            let all: Vec<MicroBatch> = MicroBatch::first(shape.micro_batches).collect();
            let rounds = all.chunks(shape.ranks).flat_map(|round| {
                let fill = round.iter().map(move |&m| Compute::forward(stage, m));
                fill.chain(round.iter().map(move |&m| Compute::backward(stage, m)))
            });
            rounds.collect()
        }))
    }
}
