//! The command line of the example.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use stovepipe::partition::{PartitionerFacts, partitioner_named, partitioners};
use stovepipe::prelude::*;
use stovepipe::recompute::{PolicyError, PolicyFacts, policies, policy_named};
use stovepipe::schedule::{schedule_named, schedules};
use stovepipe::{backend_named, backends};

/// Trains a character-level Transformer language model, split over pipeline stages.
///
/// By default the text is this workspace's own sources and documents, and two stages train for a
/// minute or two. Writes the loss curve, the timeline of a step, its trace and a report to a
/// folder.
#[derive(Parser)]
#[command(name = "char-lm")]
pub(crate) struct Arguments {
    /// Train on this file instead of the workspace's sources and documents.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Measures the layers, writes the profile to this file for `stovepipe tune`, and ends; with
    /// --tune it goes on.
    #[arg(long, value_name = "FILE", conflicts_with = "transport")]
    pub(crate) profile: Option<PathBuf>,
    /// Measures the layers, chooses stages, micro-batches, schedule, recomputation and cut for as
    /// many ranks as --stages says at most, and trains so.
    #[arg(
        long,
        conflicts_with_all = ["micro_batches", "schedule", "checkpoint", "partition", "transport"]
    )]
    pub(crate) tune: bool,
    /// Stages that the layers are cut into.
    #[arg(long, default_value_t = 2)]
    pub(crate) stages: usize,
    /// Whether ranks are threads of this process, or the processes of an MPI job; that takes a
    /// build with `--features mpi`, and as many processes as ranks: `mpirun -n 4 char-lm
    /// --transport mpi --stages 4`.
    #[arg(long, value_enum, default_value_t = Transport::Threads)]
    pub(crate) transport: Transport,
    /// Micro-batches in a mini-batch.
    #[arg(long, default_value_t = 8)]
    pub(crate) micro_batches: usize,
    /// The order of the work.
    #[arg(long, value_name = "NAME", default_value = "1f1b", long_help = schedule_help())]
    schedule: String,
    /// Which activations are recomputed instead of kept.
    #[arg(long, value_name = "NAME", default_value = "never", long_help = checkpoint_help())]
    checkpoint: String,
    /// How layers are cut into stages.
    #[arg(long, value_name = "NAME", default_value = "parameters", long_help = partition_help())]
    partition: String,
    /// Sequences in a mini-batch.
    #[arg(long, default_value_t = 32)]
    pub(crate) batch: usize,
    /// Characters in a sequence.
    #[arg(long, default_value_t = 64)]
    pub(crate) seq: usize,
    /// Width of the model.
    #[arg(long, default_value_t = 128)]
    pub(crate) dim: usize,
    /// Transformer blocks.
    #[arg(long, default_value_t = 4)]
    pub(crate) layers: usize,
    /// Attention heads in a block; must divide the width.
    #[arg(long, default_value_t = 4)]
    pub(crate) heads: usize,
    /// Training steps.
    #[arg(long, default_value_t = 400)]
    pub(crate) steps: usize,
    /// Adam's learning rate.
    #[arg(long, default_value_t = 2e-3)]
    pub(crate) lr: f64,
    /// Seed of the parameters, the batches and the sample.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Where the stages run.
    #[arg(
        long,
        value_name = "NAME",
        default_value = backends()[0].name,
        long_help = backend_help()
    )]
    backend: String,
    /// Threads for each rank on the processor.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Folder for loss.svg, timeline.svg, trace.json and report.json.
    #[arg(long, value_name = "DIR", default_value = "target/char-lm")]
    pub(crate) out: PathBuf,
}

/// How ranks reach each other.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Ranks are threads of this process.
    Threads,
    /// Ranks are processes that `mpirun` or `srun` started; the first one prints.
    Mpi,
}

/// The help for an argument that takes one of many names.
fn help<'a>(
    about: &str,
    choices: impl IntoIterator<Item = (&'a str, &'a str)>,
    more: &str,
) -> String {
    let choices = choices.into_iter().map(|(name, summary)| format!("- {name}: {summary}\n"));
    format!("{about}:\n\n{}\n{more}", choices.collect::<String>())
}

fn schedule_help() -> String {
    help(
        "The order of the work",
        schedules().iter().map(|named| (named.name, named.summary)),
        "Some plan several stages on each rank; some can be simulated, but not run yet.",
    )
}

fn checkpoint_help() -> String {
    help(
        "Which activations are recomputed instead of kept",
        policies().iter().map(|named| (named.form, named.summary)),
        "What has to know the layers' memory measures them first.",
    )
}

fn partition_help() -> String {
    help(
        "How layers are cut into stages, by their numbers of parameters",
        partitioners().iter().map(|named| (named.form, named.summary)),
        "`parameters` is short for `minimax`, sizes like `3,4` for `explicit=3,4`.",
    )
}

fn backend_help() -> String {
    help(
        "Where the stages run",
        backends().iter().map(|named| (named.name, named.summary)),
        "Several with commas between them serve the ranks in turn. Others have to be compiled in.",
    )
}

impl Arguments {
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>> {
        Ok(backend_named(&self.backend, self.threads)?)
    }

    pub(crate) fn schedule(&self) -> Result<Box<dyn Schedule>> {
        Ok(schedule_named(&self.schedule)?)
    }

    /// The checkpoint policy; some need facts about the model.
    pub(crate) fn checkpoint(
        &self,
        facts: &PolicyFacts,
    ) -> Result<Box<dyn CheckpointPolicy>, PolicyError> {
        policy_named(&self.checkpoint, facts)
    }

    pub(crate) fn partitioner(&self) -> Result<Box<dyn Partitioner>> {
        let name = match self.partition.as_str() {
            "parameters" => "minimax".to_owned(),
            sizes if sizes.starts_with(|first: char| first.is_ascii_digit()) => {
                format!("explicit={sizes}")
            }
            name => name.to_owned(),
        };
        Ok(partitioner_named(&name, &PartitionerFacts::default())?)
    }

    /// Steps between validations: ten in a run.
    pub(crate) fn validate_every(&self) -> usize {
        self.steps.div_ceil(10).max(1)
    }
}
