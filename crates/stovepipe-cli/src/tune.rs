//! `stovepipe tune`: the fastest way to run a profiled model on given ranks.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use bytesize::ByteSize;
use clap::Args;
use stovepipe_checkpoint::{CheckpointPolicy, PolicyError, PolicyFacts, policies, policy_named};
use stovepipe_partition::partitioners;
use stovepipe_schedule::schedule_named;
use stovepipe_tune::{Choice, Cluster, Configuration, Profile, Tuner};

use crate::by_name::ByName;
use crate::output::{self, percent, time};

/// Chooses stages, micro-batches, schedule and recomputation for a model from its measured layers.
///
/// Every configuration is cut, planned and simulated. Times are in seconds. With --memory, only
/// what fits is chosen.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
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
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    memory: Vec<ByteSize>,
    /// The speed of each rank, compared with the device that was measured.
    #[arg(long, value_name = "X,…", value_delimiter = ',')]
    speeds: Vec<f64>,
    /// The links' latency in seconds.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    latency: f64,
    /// The links' bandwidth in bytes per second, like 10GB; by default messages take no time.
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<ByteSize>,
    /// Only these numbers of micro-batches; by default powers of two.
    #[arg(long, value_name = "M,…", value_delimiter = ',')]
    micro_batches: Vec<usize>,
    /// Only these schedules; by default all that Burn's stages can run.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = ByName::schedule())]
    schedules: Vec<String>,
    #[arg(long, value_name = "POLICY", help = policies_help(), value_parser = ByName::policy())]
    checkpoint: Vec<String>,
    #[arg(
        long,
        value_name = "PARTITIONER",
        help = partitioners_help(),
        value_parser = ByName::partitioner()
    )]
    partitioner: Option<String>,
    /// The number of the best that are shown.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Writes JSON, with everything that was tried.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let text = std::fs::read_to_string(&self.profile)
            .with_context(|| format!("{} can't be read", self.profile.display()))?;
        let profile = Profile::from_json(&text)
            .with_context(|| format!("{} can't be used", self.profile.display()))?;
        let cluster = self.cluster()?;
        let mut tuner = Tuner::new(&profile, &cluster);
        if let Some(batch) = self.batch {
            tuner = tuner.batch(batch);
        }
        if !self.micro_batches.is_empty() {
            tuner = tuner.micro_batches(self.micro_batches.clone());
        }
        if !self.schedules.is_empty() {
            let schedules = self.schedules.iter().map(|name| schedule_named(name));
            tuner = tuner.schedules(schedules.collect::<Result<_, _>>()?);
        }
        if !self.checkpoint.is_empty() {
            tuner = tuner.policies(self.policies(&profile)?);
        }
        if let Some(name) = &self.partitioner {
            tuner = tuner.partitioners([name]);
        }
        let report = tuner.tune()?;
        if self.json {
            return output::print_json(&report);
        }
        let mut table = output::table([
            "schedule",
            "ranks",
            "stages per rank",
            "micro-batches",
            "recomputation",
            "seconds",
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
        let unfit = match &report.rejected[..] {
            [] => String::new(),
            rejected => format!(
                "{} can't run; the nearest of them: {}: {}\n",
                rejected.len(),
                rejected[0].configuration,
                rejected[0].reason
            ),
        };
        output::print(&format!("{table}\n{more}{unfit}best: {}\n", report.best().configuration))
    }

    /// The policies that are asked for. What layers hold depends on the size of a micro-batch, so
    /// it is only known if there is one.
    fn policies(&self, profile: &Profile) -> Result<Vec<Box<dyn CheckpointPolicy>>> {
        let batch = self.batch.or(profile.sizes().max()).unwrap_or(1);
        let mut facts = PolicyFacts::default();
        if let &[micro_batches] = &self.micro_batches[..]
            && profile.knows_memory()
        {
            facts = facts.with_layers(profile.activations(batch.div_ceil(micro_batches.max(1)))?);
        }
        let policies = self.checkpoint.iter().map(|name| {
            policy_named(name, &facts).map_err(|error| match error {
                PolicyError::MissingFact { .. } => anyhow!(
                    "--checkpoint {name} depends on the size of a micro-batch: give one number with \
                     --micro-batches, and a profile that knows the bytes of its layers"
                ),
                error => error.into(),
            })
        });
        policies.collect()
    }

    fn cluster(&self) -> Result<Cluster> {
        let mut cluster = Cluster::new(self.ranks);
        if !self.memory.is_empty() {
            let bytes: Vec<u64> = self.memory.iter().map(ByteSize::as_u64).collect();
            let bytes = if bytes.len() == 1 { vec![bytes[0]; self.ranks] } else { bytes };
            cluster = cluster.memory(bytes);
        }
        if !self.speeds.is_empty() {
            cluster = cluster.speeds(self.speeds.clone());
        }
        let bandwidth = self.bandwidth.map_or(f64::INFINITY, |size| size.as_u64() as f64);
        ensure!(
            self.ranks <= 1024,
            "--ranks {} is more than the search is made for: 1024",
            self.ranks
        );
        Ok(cluster.link(self.latency, bandwidth))
    }
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
        time(choice.seconds),
        if slower > 0.0 { format!("+{}", percent(Some(slower))) } else { String::new() },
        percent(Some(choice.bubble)),
        choice.most_memory().map_or("unknown".to_owned(), |bytes| ByteSize(bytes).to_string()),
        choice.partition.to_string(),
    ]
}

/// The help for `--checkpoint`.
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
