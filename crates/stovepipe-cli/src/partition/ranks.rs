//! The parts that are made, the ranks they are on, and what these have.

use anyhow::{Context, Result, ensure};
use clap::Args;
use stovepipe_partition::{Memory, PartitionerFacts};
use stovepipe_schedule::schedule_named;

use super::layers::{Layers, each};
use crate::by_name::ByName;
use crate::shape::ShapeArguments;
use crate::units::{self, Bytes};

/// Parts and ranks.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("placed").required(true))]
pub(super) struct RankArguments {
    /// The number of parts, each on a rank of its own.
    #[arg(long, value_name = "K", group = "placed")]
    parts: Option<usize>,
    /// The rank of each part, counted from 0, where several parts share a rank.
    #[arg(long, value_name = "R,…", value_delimiter = ',', group = "placed")]
    placement: Vec<usize>,
    /// The schedule whose stages the parts become: it says on which rank they are and how many
    /// micro-batches they keep.
    #[arg(
        long,
        value_name = "NAME",
        group = "placed",
        requires_all = ["ranks", "micro_batches"],
        value_parser = ByName::schedule()
    )]
    schedule: Option<String>,
    /// Ranks that the schedule is for.
    #[arg(long, value_name = "P", conflicts_with_all = PLACED_BY_HAND)]
    ranks: Option<usize>,
    /// Micro-batches that the schedule is for.
    #[arg(long, value_name = "M", conflicts_with_all = PLACED_BY_HAND)]
    micro_batches: Option<usize>,
    /// Stages on each rank; by default 2 for schedules of several, otherwise 1.
    #[arg(long, value_name = "V", conflicts_with_all = PLACED_BY_HAND)]
    stages_per_rank: Option<usize>,
    /// The relative speed of each rank, or one for all: a rank of speed 2 needs half the time.
    #[arg(long, value_name = "X,…", value_delimiter = ',', value_parser = speed)]
    #[arg(allow_hyphen_values = true)]
    speeds: Vec<f64>,
    /// The memory of each rank, like 16GiB, or one for all; what layers need must be known.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::bytes)]
    #[arg(allow_hyphen_values = true)]
    memory: Vec<Bytes>,
    /// Micro-batches that each part keeps at most, or one number for all; by default those of the
    /// schedule, or 1.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    kept_micro_batches: Vec<usize>,
}

/// A cut that is asked for.
pub(super) struct Request {
    pub(super) parts: usize,
    /// The constraints on the cut.
    pub(super) facts: PartitionerFacts,
    /// The needs of layers, if they are known, limited or not.
    pub(super) needs: Option<Memory>,
}

impl RankArguments {
    /// Whether bytes are given with a unit.
    pub(super) fn have_byte_units(&self) -> bool {
        Bytes::have_unit(&self.memory)
    }

    /// The number of parts, and what is known of their ranks and of the layers.
    pub(super) fn request(&self, layers: &Layers) -> Result<Request> {
        let placed = self.placed(layers)?;
        let parts = placed.ranks.len();
        let last = placed.ranks.iter().copied().max().unwrap_or(0);
        ensure!(
            last < parts,
            "--placement has rank {last}, but {parts} parts: number ranks from 0 on, each with a part"
        );
        let ranks = last + 1;
        let mut facts = PartitionerFacts::default();
        // Where each part has its own rank, there is nothing to say.
        if placed.ranks.iter().copied().ne(0..parts) {
            facts = facts.with_placement(placed.ranks);
        }
        if !self.speeds.is_empty() {
            facts = facts.with_speeds(each("speeds", &self.speeds, ranks, "ranks")?);
        }
        if let Some(cuts) = &layers.cut_costs {
            facts = facts.with_cut_costs(&cuts[..]);
        }
        let capacities: Vec<u64> = self.memory.iter().map(|bytes| bytes.count).collect();
        let Some(bytes) = &layers.bytes else {
            for (is_given, name) in [
                (!capacities.is_empty(), "memory"),
                (!self.kept_micro_batches.is_empty(), "kept-micro-batches"),
            ] {
                ensure!(
                    !is_given,
                    "--{name} is of no use without what layers need: give --fixed-bytes or \
                     --kept-bytes, or a --profile that knows its bytes"
                );
            }
            return Ok(Request { parts, needs: None, facts });
        };
        let in_flight = match &self.kept_micro_batches[..] {
            [] => placed.kept,
            given => each("kept-micro-batches", given, parts, "parts")?,
        };
        let needs = |capacities| Memory { layers: bytes.clone(), in_flight, capacities };
        if capacities.is_empty() {
            return Ok(Request { parts, needs: Some(needs(vec![u64::MAX; ranks])), facts });
        }
        let memory = needs(each("memory", &capacities, ranks, "ranks")?);
        Ok(Request { parts, needs: Some(memory.clone()), facts: facts.with_memory(memory) })
    }

    fn placed(&self, layers: &Layers) -> Result<Placed> {
        let costs = &layers.costs;
        if let Some(parts) = self.parts {
            costs.check_parts(parts).with_context(|| format!("--parts {parts}"))?;
            return Ok(Placed { ranks: (0..parts).collect(), kept: vec![1; parts] });
        }
        let Some(name) = &self.schedule else {
            costs.check_parts(self.placement.len()).context("--placement")?;
            let kept = vec![1; self.placement.len()];
            return Ok(Placed { ranks: self.placement.clone(), kept });
        };
        let arguments = ShapeArguments {
            ranks: self.ranks.unwrap_or(0),
            micro_batches: self.micro_batches.unwrap_or(0),
            stages_per_rank: self.stages_per_rank,
        };
        let shape = arguments.shape(&schedule_named(name)?);
        // Before the plan is made, which may be long.
        let stages = shape.ranks.saturating_mul(shape.stages_per_rank);
        if stages > 0 {
            costs.check_parts(stages).with_context(|| format!("--schedule {name} {arguments}"))?;
        }
        let plan = arguments.plan(name)?;
        let ranks = plan.placement().iter().map(|rank| rank.index()).collect();
        Ok(Placed { ranks, kept: plan.stage_activations() })
    }
}

/// Arguments that place parts without a schedule.
const PLACED_BY_HAND: [&str; 2] = ["parts", "placement"];

/// Parts that are placed.
struct Placed {
    /// The rank of each part.
    ranks: Vec<usize>,
    /// The micro-batches that each part keeps at most.
    kept: Vec<usize>,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: Option<f64> = text.parse().ok();
    speed
        .filter(|speed| speed.is_normal() && *speed > 0.0)
        .ok_or_else(|| "a speed is a finite number above 0, such as 1.5".to_owned())
}
