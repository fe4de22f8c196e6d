//! The arguments that say what actions and messages cost.

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use stovepipe_checkpoint::{LayerActivations, PolicyError, PolicyFacts, lower, policy_named};
use stovepipe_schedule::{CostModel, Edges, Link, Plan, Program, StageCost, StageMemory};

use crate::by_name::ByName;

/// The things that values are given for.
#[derive(Clone, Copy)]
pub(crate) enum Per {
    /// Each stage.
    Stage,
    /// Each rank, which shares its costs among its stages.
    Rank,
}

impl Per {
    fn unit(self) -> &'static str {
        match self {
            Self::Stage => "stages",
            Self::Rank => "ranks",
        }
    }

    fn count(self, plan: &Plan) -> usize {
        match self {
            Self::Stage => plan.stages(),
            Self::Rank => plan.ranks(),
        }
    }

    /// The place of each stage's value.
    fn places(self, plan: &Plan) -> Vec<usize> {
        match self {
            Self::Stage => (0..plan.stages()).collect(),
            Self::Rank => plan.placement().iter().map(|rank| rank.index()).collect(),
        }
    }

    /// In how many parts a value is shared.
    fn shares(self, plan: &Plan) -> usize {
        match self {
            Self::Stage => 1,
            Self::Rank => plan.stages().div_ceil(plan.ranks()),
        }
    }
}

/// One value serves all; otherwise give one for each, separated by commas.
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
    pub(crate) fn program(&self, plan: &Plan, per: Per) -> Result<Program> {
        let default = if self.prices_recomputation() { "always" } else { "never" };
        let name = self.checkpoint.as_deref().unwrap_or(default);
        let mut facts = PolicyFacts::default();
        if let Some(stages) = self.memory(plan, per)? {
            let stages = stages.iter().flat_map(|stage| &stage.layers);
            let times = self.recompute_times(plan, per)?;
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
    pub(crate) fn model(&self, plan: &Plan, per: Per) -> Result<CostModel> {
        let values = |flag: &str, values: &[f64]| by_stage(flag, values, plan, per);
        let forward = values("forward", &self.forward)?;
        let backward = values("backward", &self.backward)?;
        let update = values("update", &self.update)?;
        let weight_grad = match &self.weight_grad[..] {
            [] => backward.iter().map(|backward| backward / 2.0).collect(),
            given => values("weight-grad", given)?,
        };
        let recompute = self.recompute_times(plan, per)?;
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
        Ok(CostModel::new(stages)
            .with_overhead(self.overhead)
            .with_link(link)
            .with_blocking_sends(self.blocking_sends))
    }

    /// The time of each stage's recomputation.
    fn recompute_times(&self, plan: &Plan, per: Per) -> Result<Vec<f64>> {
        match &self.recompute[..] {
            [] => by_stage("forward", &self.forward, plan, per),
            given => by_stage("recompute", given, plan, per),
        }
    }

    /// The bytes of each stage, if they are given.
    pub(crate) fn memory(&self, plan: &Plan, per: Per) -> Result<Option<Vec<StageMemory>>> {
        if self.activation_bytes.is_empty() {
            return Ok(None);
        }
        let activations = spread("activation-bytes", &self.activation_bytes, plan, per)?;
        let (shares, input) = (per.shares(plan) as u64, self.boundary_bytes()? as u64);
        let stages = per.places(plan).into_iter();
        let held =
            stages.map(|place| StageMemory::whole(activations[place].div_ceil(shares), input));
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
fn by_stage(flag: &str, values: &[f64], plan: &Plan, per: Per) -> Result<Vec<f64>> {
    let spread = spread(flag, values, plan, per)?;
    let shares = per.shares(plan) as f64;
    Ok(per.places(plan).into_iter().map(|place| spread[place] / shares).collect())
}

/// One value for each, where one may serve all.
fn spread<T: Copy>(flag: &str, values: &[T], plan: &Plan, per: Per) -> Result<Vec<T>> {
    let count = per.count(plan);
    match values {
        [one] => Ok(vec![*one; count]),
        many => {
            ensure!(
                many.len() == count,
                "--{flag} has {} values for {count} {}: give one for each, or one for all",
                many.len(),
                per.unit()
            );
            Ok(many.to_vec())
        }
    }
}
