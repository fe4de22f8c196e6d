//! The arguments that say what actions and messages cost.

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use stovepipe_checkpoint::{LayerActivations, PolicyError, PolicyFacts, lower, policy_named};
use stovepipe_schedule::{CostModel, Edges, Handling, Link, Plan, Program, StageCost, StageMemory};

use crate::by_name::ByName;

/// Costs are those of a whole rank, which shares them out among its stages: so schedules with
/// different numbers of stages per rank compare. One value serves all ranks, several separated by
/// commas are one for each; as many as there are stages are those of the stages.
#[derive(Args)]
pub(crate) struct CostArguments {
    /// Time of a forward.
    #[arg(
        long,
        value_name = "T,…",
        value_delimiter = ',',
        allow_hyphen_values = true,
        default_value = "1"
    )]
    forward: Vec<f64>,
    /// Time of a whole backward, without recomputation.
    #[arg(
        long,
        value_name = "T,…",
        value_delimiter = ',',
        allow_hyphen_values = true,
        default_value = "2"
    )]
    backward: Vec<f64>,
    /// The part of the backward that schedules with split backwards may defer; by default half of
    /// it.
    #[arg(long, value_name = "T,…", value_delimiter = ',', allow_hyphen_values = true)]
    weight_grad: Vec<f64>,
    /// The activations that are recomputed instead of kept; by default never, or always if
    /// --recompute is given. Each stage counts as one layer.
    #[arg(long, value_name = "POLICY", value_parser = ByName::policy())]
    checkpoint: Option<String>,
    /// Time of a recomputation; by default that of a forward.
    #[arg(long, value_name = "T,…", value_delimiter = ',', allow_hyphen_values = true)]
    recompute: Vec<f64>,
    /// Time of the optimizer's step.
    #[arg(
        long,
        value_name = "T,…",
        value_delimiter = ',',
        allow_hyphen_values = true,
        default_value = "0"
    )]
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
    /// Time that a message takes of the rank that sends it, such as for encoding it.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    send: f64,
    /// Time that a message takes of the rank that receives it.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    receive: f64,
    /// Messages that may wait on a rank, of each other rank, before the sender waits; by default
    /// they queue up.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    queue: Option<u64>,
    /// A rank can't compute while its message leaves.
    #[arg(long)]
    blocking_sends: bool,
    /// Bytes of activations kept for a micro-batch; gives the peak in bytes.
    #[arg(long, value_name = "N,…", value_delimiter = ',', allow_hyphen_values = true)]
    activation_bytes: Vec<u64>,
}

impl CostArguments {
    /// Whether a cost of recomputation is given.
    pub(crate) fn prices_recomputation(&self) -> bool {
        !self.recompute.is_empty()
    }

    /// Whether a policy is given.
    pub(crate) fn chooses_recomputation(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// The program of a plan with what is recomputed, each stage taken as one layer.
    pub(crate) fn program(&self, plan: &Plan) -> Result<Program> {
        let default = if self.prices_recomputation() { "always" } else { "never" };
        let name = self.checkpoint.as_deref().unwrap_or(default);
        let mut facts = PolicyFacts::default();
        if let Some(stages) = self.memory(plan)? {
            let stages = stages.iter().flat_map(|stage| &stage.layers);
            let times = self.recompute_times(plan)?;
            let layers = stages.zip(times);
            facts = facts.with_layers(
                layers
                    .map(|(memory, recompute)| LayerActivations { memory: *memory, recompute })
                    .collect::<Vec<_>>(),
            );
        }
        let policy = policy_named(name, &facts).map_err(|error| match error {
            PolicyError::MissingFact { .. } => {
                anyhow!("--checkpoint {name} has no bytes to count: give --activation-bytes")
            }
            error => error.into(),
        })?;
        let stages = plan.stages();
        Ok(lower(plan, &vec![1; stages], &policy, &Edges::chain(stages))?)
    }

    /// The costs of the plan's stages.
    pub(crate) fn model(&self, plan: &Plan) -> Result<CostModel> {
        let values = |flag: &str, values: &[f64]| by_stage(flag, values, plan);
        let forward = values("forward", &self.forward)?;
        let backward = values("backward", &self.backward)?;
        let update = values("update", &self.update)?;
        let weight_grad = match &self.weight_grad[..] {
            [] => backward.iter().map(|backward| backward / 2.0).collect(),
            given => values("weight-grad", given)?,
        };
        let recompute = self.recompute_times(plan)?;
        let stages: Vec<StageCost> = (0..plan.stages())
            .map(|s| StageCost {
                forward: forward[s],
                backward: backward[s],
                weight_grad: weight_grad[s],
                recompute: recompute[s],
                update: update[s],
            })
            .collect();
        let bandwidth = self.bandwidth.unwrap_or(f64::INFINITY);
        ensure!(bandwidth > 0.0, "--bandwidth is {bandwidth}: give a number above 0");
        let link = Link::of_bytes(self.latency, self.boundary_bytes()?, bandwidth);
        let model = CostModel::new(stages)
            .with_overhead(self.overhead)
            .with_link(link)
            .with_handling(Handling { send: self.send, receive: self.receive })
            .with_blocking_sends(self.blocking_sends);
        Ok(match self.queue {
            Some(messages) => {
                model.with_queue_limit(usize::try_from(messages).unwrap_or(usize::MAX))
            }
            None => model,
        })
    }

    /// The time of each stage's recomputation.
    fn recompute_times(&self, plan: &Plan) -> Result<Vec<f64>> {
        match &self.recompute[..] {
            [] => by_stage("forward", &self.forward, plan),
            given => by_stage("recompute", given, plan),
        }
    }

    /// The bytes of each stage, if they are given.
    pub(crate) fn memory(&self, plan: &Plan) -> Result<Option<Vec<StageMemory>>> {
        if self.activation_bytes.is_empty() {
            return Ok(None);
        }
        let input = self.boundary_bytes()? as u64;
        let shares = shares("activation-bytes", &self.activation_bytes, plan)?.into_iter();
        let held =
            shares.map(|(bytes, parts)| StageMemory::whole(bytes.div_ceil(parts as u64), input));
        Ok(Some(held.collect()))
    }

    fn boundary_bytes(&self) -> Result<f64> {
        let bytes = self.boundary_bytes.unwrap_or(0.0);
        ensure!(
            bytes.is_finite() && bytes >= 0.0,
            "--boundary-bytes is {bytes}: give a finite number of at least 0"
        );
        Ok(bytes)
    }
}

/// One time for each stage.
fn by_stage(flag: &str, values: &[f64], plan: &Plan) -> Result<Vec<f64>> {
    let shares = shares(flag, values, plan)?.into_iter();
    Ok(shares.map(|(value, parts)| value / parts as f64).collect())
}

/// The value of which each stage has a part, and the number of such parts.
fn shares<T: Copy>(flag: &str, values: &[T], plan: &Plan) -> Result<Vec<(T, usize)>> {
    let (ranks, stages) = (plan.ranks(), plan.stages());
    if values.len() == stages && stages != ranks {
        return Ok(values.iter().map(|value| (*value, 1)).collect());
    }
    ensure!(
        values.len() == 1 || values.len() == ranks,
        "--{flag} has {} values for {ranks} ranks with {stages} stages: give one for each, or one for all",
        values.len()
    );
    let of_stage = |rank: usize| {
        let value = values[if values.len() == 1 { 0 } else { rank }];
        (value, plan.stages_of(rank).len())
    };
    Ok(plan.placement().iter().map(|rank| of_stage(rank.index())).collect())
}

/// Says of how much costs are meant, where that isn't plain.
pub(crate) fn convention(plan: &Plan) -> String {
    match plan.stages() / plan.ranks() {
        1 => String::new(),
        stages => {
            format!(
                "costs are those of a whole rank, which shares them among its {stages} stages\n"
            )
        }
    }
}
