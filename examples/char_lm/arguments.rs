//! The command line of the example.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use stovepipe::partition::{Explicit, Minimax, Partition, Uniform};
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, ExceptLast, Never, SqrtLayers};
use stovepipe::schedule::schedule_named;
use stovepipe::{backend_named, backends};

/// Trains a character-level Transformer language model, split over pipeline stages.
///
/// By default the text is this workspace's own sources and documents, and two stages train for a
/// minute or two. Writes the loss curve, the timeline of a step, its trace and a report to a folder.
#[derive(Parser)]
#[command(name = "char-lm")]
pub(crate) struct Arguments {
    /// Train on this file instead of the workspace's sources and documents.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Measures the layers, writes the profile to this file for `stovepipe tune`, and ends; with --tune
    /// it goes on.
    #[arg(long, value_name = "FILE", conflicts_with = "transport")]
    pub(crate) profile: Option<PathBuf>,
    /// Measures the layers, chooses stages, micro-batches, schedule, recomputation and cut for as many
    /// ranks as --stages says at most, and trains so.
    #[arg(
        long,
        conflicts_with_all = ["micro_batches", "schedule", "checkpoint", "partition", "transport"]
    )]
    pub(crate) tune: bool,
    /// Stages that the layers are cut into.
    #[arg(long, default_value_t = 2)]
    pub(crate) stages: usize,
    /// Whether ranks are threads of this process, or the processes of an MPI job; that takes a build with
    /// `--features mpi`, and as many processes as ranks: `mpirun -n 4 char-lm --transport mpi --stages 4`.
    #[arg(long, value_enum, default_value_t = Transport::Threads)]
    pub(crate) transport: Transport,
    /// Micro-batches in a mini-batch.
    #[arg(long, default_value_t = 8)]
    pub(crate) micro_batches: usize,
    /// The order of the work: gpipe, gpipe-forward, 1f1b, interleaved-1f1b, looped-bfs or
    /// looped-bfs-forward. Interleaved and looped ones put two stages on each rank.
    #[arg(long, value_name = "NAME", default_value = "1f1b")]
    schedule: String,
    /// Which activations are recomputed instead of kept.
    #[arg(long, value_enum, default_value_t = PolicyName::Never)]
    checkpoint: PolicyName,
    /// How layers are cut into stages: `parameters` balances them, `uniform` their number, and
    /// sizes like `3,4` cut by hand.
    #[arg(long, default_value = "parameters")]
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
    /// Where the stages run: the name of a backend that was compiled in, or several with commas between
    /// them, one for each rank in turn.
    #[arg(long, value_name = "NAME", default_value = backends()[0].name)]
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

/// Checkpoint policies by their command-line names.
#[derive(Clone, Copy, ValueEnum)]
enum PolicyName {
    /// Keep everything.
    Never,
    /// Recompute every stage.
    Always,
    /// Recompute but where the backward comes at once, and for the first backward of each stage.
    ExceptLast,
    /// Recompute every stage in segments of as many layers as the root of its number of layers.
    SqrtLayers,
}

impl Arguments {
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>> {
        Ok(backend_named(&self.backend, self.threads)?)
    }

    pub(crate) fn schedule(&self) -> Result<Box<dyn Schedule>> {
        Ok(schedule_named(&self.schedule)?)
    }

    pub(crate) fn checkpoint(&self) -> Box<dyn CheckpointPolicy> {
        match self.checkpoint {
            PolicyName::Never => Box::new(Never),
            PolicyName::Always => Box::new(Always),
            PolicyName::ExceptLast => Box::new(ExceptLast),
            PolicyName::SqrtLayers => Box::new(SqrtLayers),
        }
    }

    pub(crate) fn partitioner(&self) -> Result<Box<dyn Partitioner>> {
        Ok(match self.partition.as_str() {
            "parameters" => Box::new(Minimax),
            "uniform" => Box::new(Uniform),
            sizes => {
                let partition: Partition = sizes.parse().with_context(|| {
                    format!("--partition takes `parameters`, `uniform` or sizes like `3,4`, not `{sizes}`")
                })?;
                Box::new(Explicit::new(partition))
            }
        })
    }

    /// Steps between validations: ten in a run.
    pub(crate) fn validate_every(&self) -> usize {
        self.steps.div_ceil(10).max(1)
    }
}
