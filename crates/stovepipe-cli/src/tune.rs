//! `stovepipe tune`: the fastest way to run a profiled model on given ranks.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use bytesize::ByteSize;
use clap::Args;
use stovepipe_checkpoint::{CheckpointPolicy, PolicyError, PolicyFacts, policies, policy_named};
use stovepipe_partition::partitioners;
use stovepipe_schedule::schedule_named;
use stovepipe_tune::{
    Choice, Cluster, Configuration, MessageCosts, Profile, Report, TuneError, Tuner,
};

use crate::by_name::ByName;
use crate::units::{self, Amount, Bytes, Unit};
use crate::{input, output};

const EXAMPLES: &str = "\
Examples:
  stovepipe tune --profile profile.json --ranks 4
  stovepipe tune --profile profile.json --ranks 2 --batch 8 --memory 16GiB --schedules 1f1b,gpipe
  stovepipe tune --profile profile.json --ranks 4 --bandwidth 10GB/s --latency 5us \
    --ranks-per-node 2 --node-bandwidth 10Gbit/s --node-latency 50us
  stovepipe tune --profile profile.json --ranks 4 --policies never --policies every-layers=2 \
    --stages-per-rank 1,2 --micro-batches 4,8 --exhaustive --json";

/// Chooses stages, micro-batches, schedule and recomputation for a model from its measured layers.
///
/// What may be the fastest is cut, planned and simulated; of everything else it is known to be
/// slower. With --memory, only what fits is chosen. Of configurations whose steps can't be told
/// apart, the simplest comes first.
///
/// Times have a unit, as in 20ms, or are seconds; bytes may have one, as in 16GiB. In JSON times
/// are seconds and bytes are bytes.
// So that a negative cost gets its own message.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The profile: the times and bytes of each layer at several sizes of a micro-batch.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// Ranks that there are.
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Samples in a mini-batch; by default the largest size that was measured.
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// The memory of each rank, like 16GiB: one value for all, or one for each.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = units::bytes)]
    memory: Vec<Bytes>,
    /// The speed of each rank, compared with the device that was measured: one for all, or one for
    /// each.
    #[arg(long, value_name = "X,…", value_delimiter = ',')]
    speeds: Vec<f64>,
    #[command(flatten)]
    links: LinkArguments,
    #[command(flatten)]
    choices: ChoiceArguments,
    /// Simulates everything, also what can't be the fastest.
    #[arg(long)]
    exhaustive: bool,
    /// The number of the best that are shown.
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Output")]
    top: usize,
    /// Writes JSON, with everything that was tried.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The costs of messages between ranks.
#[derive(Args)]
#[command(next_help_heading = "Links")]
struct LinkArguments {
    /// The links' latency.
    #[arg(long, value_name = "T", default_value = "0", allow_hyphen_values = true, value_parser = units::time)]
    latency: Amount,
    /// The links' bandwidth, like 10GB/s; by default messages take no time.
    #[arg(long, value_name = "B", allow_hyphen_values = true, value_parser = units::bandwidth)]
    bandwidth: Option<Amount>,
    /// Ranks on each node, in their order; by default all are on one.
    #[arg(long, value_name = "N")]
    ranks_per_node: Option<usize>,
    /// The latency between nodes; by default that of all links.
    #[arg(long, value_name = "T", requires = "ranks_per_node", allow_hyphen_values = true, value_parser = units::time)]
    node_latency: Option<Amount>,
    /// The bandwidth between nodes, which the ranks of a node share; by default that of a link.
    #[arg(long, value_name = "B", requires = "ranks_per_node", allow_hyphen_values = true, value_parser = units::bandwidth)]
    node_bandwidth: Option<Amount>,
    /// Time that a message takes of the rank that sends it.
    #[arg(long, value_name = "T", default_value = "0", allow_hyphen_values = true, value_parser = units::time)]
    send: Amount,
    /// Time that a message takes of the rank that receives it.
    #[arg(long, value_name = "T", default_value = "0", allow_hyphen_values = true, value_parser = units::time)]
    receive: Amount,
    /// Bytes that a rank encodes in a second; by default that takes no time.
    #[arg(long, value_name = "B", allow_hyphen_values = true, value_parser = units::bandwidth)]
    send_bandwidth: Option<Amount>,
    /// Bytes that a rank decodes in a second; by default that takes no time.
    #[arg(long, value_name = "B", allow_hyphen_values = true, value_parser = units::bandwidth)]
    receive_bandwidth: Option<Amount>,
}

/// The choices there are.
#[derive(Args)]
#[command(next_help_heading = "Choices")]
struct ChoiceArguments {
    /// Only these numbers of micro-batches; by default the divisors of the batch, and the ranks
    /// times powers of two.
    #[arg(long, value_name = "M,…", value_delimiter = ',')]
    micro_batches: Vec<usize>,
    /// Only these numbers of stages on each rank; by default 1, and 2 to 4 for schedules of
    /// several.
    #[arg(long, value_name = "V,…", value_delimiter = ',')]
    stages_per_rank: Vec<usize>,
    /// Only these schedules; by default all that Burn's stages can run.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = ByName::schedule())]
    schedules: Vec<String>,
    #[arg(
        long,
        visible_alias = "checkpoint",
        value_name = "POLICY",
        help = policies_help(),
        value_parser = ByName::policy()
    )]
    policies: Vec<String>,
    #[arg(
        long,
        value_name = "PARTITIONER",
        help = partitioners_help(),
        value_parser = ByName::partitioner()
    )]
    partitioner: Option<String>,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let profile = Profile::from_json(&input::text(&self.profile)?)
            .with_context(|| format!("{} can't be used", self.profile.display()))?;
        let report = self.tune(&profile)?;
        if self.json { output::print_json(&report) } else { output::print(&self.text(&report)) }
    }

    fn tune(&self, profile: &Profile) -> Result<Report> {
        let (cluster, choices) = (self.cluster(), &self.choices);
        let bar = output::progress(0, "shapes");
        let progress = bar.clone();
        let mut tuner = Tuner::new(profile, &cluster).exhaustive(self.exhaustive).progress(
            move |settled, all| {
                progress.set_length(all as u64);
                progress.set_position(settled as u64);
            },
        );
        if let Some(batch) = self.batch {
            tuner = tuner.batch(batch);
        }
        if !choices.micro_batches.is_empty() {
            tuner = tuner.micro_batches(choices.micro_batches.clone());
        }
        if !choices.stages_per_rank.is_empty() {
            tuner = tuner.stages_per_rank(choices.stages_per_rank.clone());
        }
        if !choices.schedules.is_empty() {
            let schedules = choices.schedules.iter().map(|name| schedule_named(name));
            tuner = tuner.schedules(schedules.collect::<Result<_, _>>()?);
        }
        if !choices.policies.is_empty() {
            tuner = tuner.policies(self.policies(profile)?);
        }
        if let Some(name) = &choices.partitioner {
            tuner = tuner.partitioners([name]);
        }
        tuner.tune().map_err(|error| match error {
            TuneError::Request { what, reason } => anyhow!("{}: {reason}", argument(what)),
            error => error.into(),
        })
    }

    fn text(&self, report: &Report) -> String {
        let mut table = output::table([
            "schedule",
            "ranks",
            "stages per rank",
            "micro-batches",
            "recomputation",
            "step",
            "slower",
            "bubble",
            "most memory",
            "layers",
        ]);
        for choice in report.choices.iter().take(self.top) {
            table.add_row(row(choice, report.slower(choice)));
        }
        let hidden = report.choices.len().saturating_sub(self.top);
        let more =
            if hidden > 0 { format!("{hidden} slower ones aren't shown\n") } else { String::new() };
        let bounded = match &report.bounded[..] {
            [] => String::new(),
            [nearest, ..] => format!(
                "{} can't be faster and weren't simulated; the nearest of them takes at least {}\n",
                report.bounded.len(),
                Unit::Time.show(nearest.at_least)
            ),
        };
        let unfit = match &report.rejected[..] {
            [] => String::new(),
            rejected => format!(
                "{} can't run; the nearest of them: {}: {}\n",
                rejected.len(),
                rejected[0].configuration,
                rejected[0].reason
            ),
        };
        let best = &report.best().configuration;
        format!("{table}\n{more}{bounded}{unfit}best: {best}\n")
    }

    /// The policies that are asked for. What layers hold depends on the size of a micro-batch, so
    /// it is only known if there is one.
    fn policies(&self, profile: &Profile) -> Result<Vec<Box<dyn CheckpointPolicy>>> {
        let batch = self.batch.or(profile.sizes().max()).unwrap_or(1);
        let mut facts = PolicyFacts::default();
        if let &[micro_batches] = &self.choices.micro_batches[..]
            && profile.knows_memory()
        {
            let samples = batch.div_ceil(micro_batches.max(1));
            let activations = profile.activations(samples).context("--micro-batches")?;
            facts = facts.with_layers(activations);
        }
        let policies = self.choices.policies.iter().map(|name| {
            policy_named(name, &facts).map_err(|error| match error {
                PolicyError::MissingFact { .. } => anyhow!(
                    "--policies {name} depends on the size of a micro-batch: give one number with \
                     --micro-batches, and a profile that knows the bytes of its layers"
                ),
                error => error.into(),
            })
        });
        policies.collect()
    }

    fn cluster(&self) -> Cluster {
        let links = &self.links;
        let each_byte = |bandwidth: &Option<Amount>| {
            bandwidth.as_ref().map_or(0.0, |bandwidth| 1.0 / bandwidth.value)
        };
        let bandwidth = links.bandwidth.as_ref().map_or(f64::INFINITY, |amount| amount.value);
        let mut cluster =
            Cluster::new(self.ranks).link(links.latency.value, bandwidth).messages(MessageCosts {
                send: links.send.value,
                send_byte: each_byte(&links.send_bandwidth),
                receive: links.receive.value,
                receive_byte: each_byte(&links.receive_bandwidth),
            });
        if let Some(ranks) = links.ranks_per_node {
            let latency = links.node_latency.as_ref().unwrap_or(&links.latency).value;
            let between = links.node_bandwidth.as_ref().map_or(bandwidth, |amount| amount.value);
            cluster = cluster.nodes(ranks, latency, between);
        }
        if !self.memory.is_empty() {
            cluster = cluster.memory(self.memory.iter().map(|b| b.count).collect::<Vec<u64>>());
        }
        if !self.speeds.is_empty() {
            cluster = cluster.speeds(self.speeds.clone());
        }
        cluster
    }
}

/// The argument that gave a part of the request.
fn argument(what: &str) -> String {
    let name = match what {
        "nodes" => "ranks-per-node",
        "latency between nodes" => "node-latency",
        "bandwidth between nodes" => "node-bandwidth",
        "messages" => "send and --receive",
        "stages" => "ranks and --stages-per-rank",
        what => return format!("--{}", what.replace(' ', "-")),
    };
    format!("--{name}")
}

fn row(choice: &Choice, slower: f64) -> [String; 10] {
    let Configuration { schedule, policy, ranks, stages_per_rank, micro_batches, .. } =
        &choice.configuration;
    [
        schedule.name().to_owned(),
        ranks.to_string(),
        stages_per_rank.to_string(),
        micro_batches.to_string(),
        policy.name().to_owned(),
        Unit::Time.show(choice.seconds),
        if slower > 0.0 { format!("+{}", output::percent(Some(slower))) } else { String::new() },
        output::percent(Some(choice.bubble)),
        choice.most_memory().map_or("unknown".to_owned(), |bytes| ByteSize(bytes).to_string()),
        choice.partition.to_string(),
    ]
}

/// The help for `--policies`.
fn policies_help() -> String {
    let tuned = policies().iter().filter(|named| named.tuned).map(|named| named.name);
    format!(
        "Only this checkpoint policy, or these if it is given several times; by default {}",
        tuned.collect::<Vec<_>>().join(", ")
    )
}

/// The help for `--partitioner`.
fn partitioners_help() -> String {
    let tuned = partitioners().iter().filter(|named| named.tuned).map(|named| named.name);
    format!("The way layers are cut; by default {}", tuned.collect::<Vec<_>>().join(", "))
}
