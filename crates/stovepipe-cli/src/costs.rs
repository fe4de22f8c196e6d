//! The arguments that say what actions and messages cost.

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use stovepipe_checkpoint::{LayerActivations, PolicyError, PolicyFacts, lower, policy_named};
use stovepipe_schedule::{
    CostModel, Edges, Handling, Link, Plan, Program, StageCost, StageMemory, Timeline, simulate,
};

use crate::by_name::ByName;
use crate::units::{self, Amount, Bytes, Unit};

/// Costs are those of a whole rank, which shares them out among its stages: so schedules with
/// different numbers of stages per rank compare. One value serves all ranks, several separated by
/// commas are one for each; as many as there are stages are those of the stages.
#[derive(Args, Clone)]
pub(crate) struct CostArguments {
    /// Time of a forward; by default 1.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = units::time)]
    #[arg(allow_hyphen_values = true)]
    forward: Vec<Amount>,
    /// Time of a whole backward, without recomputation; by default twice that of a forward.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = units::time)]
    #[arg(allow_hyphen_values = true)]
    backward: Vec<Amount>,
    /// The part of the backward that schedules with split backwards may defer; by default half of
    /// it.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = units::time)]
    #[arg(allow_hyphen_values = true)]
    weight_grad: Vec<Amount>,
    /// The activations that are recomputed instead of kept; by default never, or always if
    /// --recompute is given. Each stage counts as one layer.
    #[arg(long, value_name = "POLICY", value_parser = ByName::policy())]
    checkpoint: Option<String>,
    /// Time of a recomputation; by default that of a forward.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = units::time)]
    #[arg(allow_hyphen_values = true)]
    recompute: Vec<Amount>,
    /// Time of the optimizer's step.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = units::time)]
    #[arg(allow_hyphen_values = true, default_value = "0")]
    update: Vec<Amount>,
    /// Fixed time added to every action, such as the launch of its kernels.
    #[arg(long, value_name = "T", value_parser = units::time, default_value = "0")]
    overhead: Amount,
    /// Time from the end of a transfer until the receiver has the message.
    #[arg(long, value_name = "T", value_parser = units::time, default_value = "0")]
    latency: Amount,
    /// Bytes that a link carries in a second, like 10Gbit/s or 1.2GB/s, or in a unit of time if
    /// times have no unit; by default messages take no time.
    #[arg(long, value_name = "B", value_parser = units::bandwidth, requires = "boundary_bytes")]
    bandwidth: Option<Amount>,
    /// Bytes of a message between neighbouring stages.
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    boundary_bytes: Option<Bytes>,
    /// Time that a message takes of the rank that sends it, such as for encoding it.
    #[arg(long, value_name = "T", value_parser = units::time, default_value = "0")]
    send: Amount,
    /// Time that a message takes of the rank that receives it.
    #[arg(long, value_name = "T", value_parser = units::time, default_value = "0")]
    receive: Amount,
    /// Messages that may wait on a rank, of each other rank, before the sender waits; by default
    /// they queue up.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    queue: Option<u64>,
    /// A rank can't compute while its message leaves.
    #[arg(long)]
    blocking_sends: bool,
    /// Bytes of activations kept for a micro-batch; gives the peak in bytes.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::bytes)]
    #[arg(allow_hyphen_values = true)]
    activation_bytes: Vec<Bytes>,
    /// Whether forward and backward were given as one, the work.
    #[arg(skip)]
    is_work: bool,
}

/// A forward that isn't given takes this.
const FORWARD: f64 = 1.0;
/// A backward that isn't given takes so many forwards.
const BACKWARD: f64 = 2.0;

impl CostArguments {
    /// With this time for the forward, and the same for the backward.
    pub(crate) fn with_work(&self, work: &Amount) -> Self {
        let both = vec![work.clone()];
        Self { forward: both.clone(), backward: both, is_work: true, ..self.clone() }
    }

    /// The costs of a micro-batch, if these are those of a mini-batch of so many. What isn't paid
    /// for samples is as it was: for each action, for each message, or once.
    pub(crate) fn of_micro_batch(&self, micro_batches: usize) -> Self {
        let times = |all: &[Amount]| all.iter().map(|time| time.slice(micro_batches)).collect();
        let bytes = |bytes: &Bytes| bytes.slice(micro_batches);
        Self {
            forward: self.forward().iter().map(|time| time.slice(micro_batches)).collect(),
            backward: times(&self.backward),
            weight_grad: times(&self.weight_grad),
            recompute: times(&self.recompute),
            boundary_bytes: self.boundary_bytes.as_ref().map(bytes),
            activation_bytes: self.activation_bytes.iter().map(bytes).collect(),
            ..self.clone()
        }
    }

    /// The unit of all times.
    pub(crate) fn unit(&self) -> Result<Unit> {
        let work = |name| if self.is_work { "work" } else { name };
        let (one, forward) = (std::slice::from_ref::<Amount>, self.forward());
        let given = [
            (work("forward"), &forward[..]),
            (work("backward"), &self.backward),
            ("weight-grad", &self.weight_grad),
            ("recompute", &self.recompute),
            ("update", &self.update),
            ("overhead", one(&self.overhead)),
            ("latency", one(&self.latency)),
            ("send", one(&self.send)),
            ("receive", one(&self.receive)),
            ("bandwidth", self.bandwidth.as_slice()),
        ];
        units::common(given)
    }

    /// Whether bytes are given with a unit.
    pub(crate) fn have_byte_units(&self) -> bool {
        Bytes::have_unit(self.activation_bytes.iter().chain(&self.boundary_bytes))
    }

    /// The uniform times of a forward, a backward and what is added to each, if nothing else costs
    /// anything while a step runs.
    pub(crate) fn of_actions_alone(&self) -> Option<(f64, f64, f64)> {
        let messages_are_free = self.boundary_bytes.is_none()
            && [&self.latency, &self.send, &self.receive].iter().all(|time| time.value == 0.0);
        let nothing_recomputed = self.checkpoint.is_none() && self.recompute.is_empty();
        let queues = self.queue.is_none();
        let (forward, backward) = (self.forward(), self.backward());
        let ([forward], [backward]) = (&forward[..], &backward[..]) else { return None };
        (messages_are_free && nothing_recomputed && queues).then_some((
            forward.value,
            backward.value,
            self.overhead.value,
        ))
    }

    /// Simulates.
    pub(crate) fn simulate(&self, program: &Program) -> Result<Timeline> {
        let timeline = simulate(program, &self.model(program.plan())?);
        timeline.with_context(|| match self.queue {
            Some(messages) => format!("--queue {messages}, or the costs, can't be used"),
            None => "--forward, --backward and the other costs can't be used".to_owned(),
        })
    }

    fn forward(&self) -> Vec<Amount> {
        match &self.forward[..] {
            [] => vec![Amount::new(FORWARD, Unit::Plain, "1 by default")],
            given => given.to_vec(),
        }
    }

    fn backward(&self) -> Vec<Amount> {
        match &self.backward[..] {
            [] => self.forward().iter().map(|forward| forward.times(BACKWARD)).collect(),
            given => given.to_vec(),
        }
    }

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
    fn model(&self, plan: &Plan) -> Result<CostModel> {
        let values = |flag: &str, values: &[Amount]| by_stage(flag, values, plan);
        let forward = values("forward", &self.forward())?;
        let backward = values("backward", &self.backward())?;
        let update = values("update", &self.update)?;
        let weight_grad = match &self.weight_grad[..] {
            [] => backward.iter().map(|backward| backward / 2.0).collect(),
            given => values("weight-grad", given)?,
        };
        let part = weight_grad.iter().zip(&backward).position(|(part, whole)| part > whole);
        if let Some(stage) = part {
            bail!(
                "--weight-grad is {} on stage {stage}, but --backward {}: that leaves no time for \
                 the input gradient; give a part of the backward",
                weight_grad[stage],
                backward[stage]
            );
        }
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
        let bandwidth = self.bandwidth.as_ref().map_or(f64::INFINITY, |bandwidth| bandwidth.value);
        let link = Link::of_bytes(self.latency.value, self.boundary_bytes() as f64, bandwidth);
        let model = CostModel::new(stages)
            .with_overhead(self.overhead.value)
            .with_link(link)
            .with_handling(Handling { send: self.send.value, receive: self.receive.value })
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
            [] => by_stage("forward", &self.forward(), plan),
            given => by_stage("recompute", given, plan),
        }
    }

    /// The bytes of each stage, if they are given.
    pub(crate) fn memory(&self, plan: &Plan) -> Result<Option<Vec<StageMemory>>> {
        if self.activation_bytes.is_empty() {
            return Ok(None);
        }
        let shares = shares("activation-bytes", &self.activation_bytes, plan)?.into_iter();
        let held = shares.map(|(bytes, parts)| {
            StageMemory::whole(bytes.slice(parts).count, self.boundary_bytes())
        });
        Ok(Some(held.collect()))
    }

    fn boundary_bytes(&self) -> u64 {
        self.boundary_bytes.map_or(0, |bytes| bytes.count)
    }
}

/// One time for each stage.
fn by_stage(flag: &str, values: &[Amount], plan: &Plan) -> Result<Vec<f64>> {
    let values: Vec<f64> = values.iter().map(|amount| amount.value).collect();
    let shares = shares(flag, &values, plan)?.into_iter();
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
