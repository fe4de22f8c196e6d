//! The arguments that say what actions and messages cost.

use anyhow::{Result, ensure};
use clap::Args;
use stovepipe_schedule::{CostModel, Link, Plan, StageCost, StageMemory};

/// One value serves all stages; otherwise give one for each, separated by commas.
#[derive(Args)]
pub(crate) struct CostArguments {
    /// Time of a forward.
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "1")]
    forward: Vec<f64>,
    /// Time of a whole backward, without recomputation.
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "2")]
    backward: Vec<f64>,
    /// The part of the backward that schedules with split backwards may defer; by default half of it.
    #[arg(long, value_name = "T,…", value_delimiter = ',')]
    weight_grad: Vec<f64>,
    /// Time of a recomputation; by default that of a forward.
    #[arg(long, value_name = "T,…", value_delimiter = ',')]
    recompute: Vec<f64>,
    /// Time of the optimizer's step.
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "0")]
    update: Vec<f64>,
    /// Fixed time added to every action, such as the launch of its kernels.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) overhead: f64,
    /// Time from the end of a transfer until the receiver has the message.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    latency: f64,
    /// Bytes that a link carries in a unit of time; by default messages take no time.
    #[arg(long, value_name = "B", requires = "boundary_bytes")]
    bandwidth: Option<f64>,
    /// Bytes of a message between neighbouring stages.
    #[arg(long, value_name = "N")]
    boundary_bytes: Option<f64>,
    /// A rank can't compute while its message leaves.
    #[arg(long)]
    blocking_sends: bool,
    /// Bytes of activations that a stage keeps for a micro-batch; gives the peak in bytes.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    activation_bytes: Vec<u64>,
}

impl CostArguments {
    /// Whether a cost of recomputation is given.
    pub(crate) fn prices_recomputation(&self) -> bool {
        !self.recompute.is_empty()
    }

    /// The costs of the plan's stages, one value for each given one.
    pub(crate) fn by_stage(&self, plan: &Plan) -> Result<CostModel> {
        self.model(plan.stages(), 1.0, |stage| stage)
    }

    /// The same with values for ranks, each of which shares its costs among its stages.
    pub(crate) fn by_rank(&self, plan: &Plan) -> Result<CostModel> {
        let chunks = plan.stages() as f64 / plan.ranks() as f64;
        self.model(plan.stages(), 1.0 / chunks, |stage| plan.placement()[stage].index())
    }

    fn model(
        &self,
        stages: usize,
        share: f64,
        place: impl Fn(usize) -> usize,
    ) -> Result<CostModel> {
        let places = (0..stages).map(&place).max().map_or(0, |last| last + 1);
        let values = |flag: &str, values: &[f64]| -> Result<Vec<f64>> {
            let spread = spread(flag, values, places)?;
            Ok((0..stages).map(|stage| spread[place(stage)] * share).collect())
        };
        let forward = values("forward", &self.forward)?;
        let backward = values("backward", &self.backward)?;
        let update = values("update", &self.update)?;
        let weight_grad = match &self.weight_grad[..] {
            [] => backward.iter().map(|backward| backward / 2.0).collect(),
            given => values("weight-grad", given)?,
        };
        let recompute = match &self.recompute[..] {
            [] => forward.clone(),
            given => values("recompute", given)?,
        };
        let stages: Vec<StageCost> = (0..stages)
            .map(|s| StageCost {
                forward: forward[s],
                backward: backward[s],
                weight_grad: weight_grad[s],
                recompute: recompute[s],
                update: update[s],
            })
            .collect();
        let bytes = self.boundary_bytes.unwrap_or(0.0);
        let link = Link::of_bytes(self.latency, bytes, self.bandwidth.unwrap_or(f64::INFINITY));
        Ok(CostModel::new(stages)
            .with_overhead(self.overhead)
            .with_link(link)
            .with_blocking_sends(self.blocking_sends))
    }

    /// What each stage holds, if it was said.
    pub(crate) fn memory(&self, stages: usize) -> Result<Option<Vec<StageMemory>>> {
        if self.activation_bytes.is_empty() {
            return Ok(None);
        }
        let activations = spread("activation-bytes", &self.activation_bytes, stages)?;
        let input = self.boundary_bytes.unwrap_or(0.0) as u64;
        Ok(Some(activations.into_iter().map(|bytes| StageMemory::whole(bytes, input)).collect()))
    }
}

/// One value for each of `count`, where one may serve all.
fn spread<T: Copy>(flag: &str, values: &[T], count: usize) -> Result<Vec<T>> {
    match values {
        [one] => Ok(vec![*one; count]),
        many => {
            ensure!(
                many.len() == count,
                "--{flag} has {} values for {count} stages: give one for each, or one for all",
                many.len()
            );
            Ok(many.to_vec())
        }
    }
}
