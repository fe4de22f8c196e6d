//! `stovepipe partition`: cuts layers into stages by their costs.

mod layers;
mod ranks;
mod report;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use stovepipe_partition::{
    ConstrainedMinimax, Costs, Partition, Partitioner, PartitionerFacts, partitioner_named,
};

use self::layers::LayerArguments;
use self::ranks::{RankArguments, Request};
use self::report::Report;
use crate::by_name::ByName;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  stovepipe partition --costs 13,13,19,16 --parts 3
  stovepipe partition --costs 20ms,30ms,30ms,10ms --parts 2 --speeds 1,2 --cut-costs 1ms
  stovepipe partition --costs 5,2,5,5,7,12,3 --schedule interleaved-1f1b --ranks 2 \
    --micro-batches 4 --fixed-bytes 1GiB --kept-bytes 256MiB --memory 8GiB
  stovepipe partition --costs 1,2,3,4,5,6 --parts 2 --together 2-4 --pin 0:0
  stovepipe partition --costs 1,2,3,4,5,6 --parts 2 --partitioner explicit=4,2
  stovepipe partition --profile profile.json --samples 4 --by time --parts 2 --memory 16GiB";

/// Cuts layers with known costs into contiguous parts.
///
/// A cut is as good as its bottleneck, the time of the busiest rank. Layers come with their costs,
/// or from a profile; parts have a rank each, or are placed as a schedule places its stages.
/// Whichever way they are cut, the time and the bytes of parts and ranks are those that speeds,
/// costs of cuts and needs give.
///
/// Costs have a unit, as in 20ms or 16MiB, or all are plain numbers. In JSON times are seconds, or
/// plain as they were given, and bytes are bytes.
// So that a negative cost gets its own message.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten, next_help_heading = "Layers")]
    layers: LayerArguments,
    #[command(flatten, next_help_heading = "Parts and ranks")]
    ranks: RankArguments,
    /// The way they are cut; by default minimax, or constrained-minimax if there is anything that
    /// it alone heeds: speeds, costs of cuts, bytes, several parts on a rank, groups, pins.
    #[arg(
        long,
        value_name = "PARTITIONER",
        help_heading = "Cut",
        value_parser = ByName::partitioner()
    )]
    partitioner: Option<String>,
    /// Layers that stay together, counted from 0: the first and the last.
    #[arg(long, value_name = "FIRST-LAST,…", value_delimiter = ',', help_heading = "Cut")]
    #[arg(value_parser = group)]
    together: Vec<(usize, usize)>,
    /// Layers that must be in a part, both counted from 0.
    #[arg(long, value_name = "LAYER:PART,…", value_delimiter = ',', help_heading = "Cut")]
    #[arg(value_parser = pin)]
    pin: Vec<(usize, usize)>,
    /// Writes JSON.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let layers = self.layers.read()?;
        let Request { parts, facts, needs } = self.ranks.request(&layers)?;
        let facts = self.with_layers(facts, layers.costs.len(), parts)?;
        let (partition, bound) = self.cut(&layers.costs, parts, &facts)?;
        let has_memory = facts.memory.is_some();
        let mut priced = ConstrainedMinimax::with_facts(&facts);
        if let Some(needs) = &needs {
            priced = priced.memory(needs.clone());
        }
        let loads = priced.loads(&layers.costs, &partition)?;
        let report = Report::new(&partition, bound, loads, needs.as_ref(), has_memory);
        self.check(&partition, &report)?;
        if self.json {
            output::print_json(&report)
        } else {
            output::print(&report.to_text(&partition, layers.unit, self.byte_units()))
        }
    }

    /// With layers that stay together or must be in a part.
    fn with_layers(
        &self,
        mut facts: PartitionerFacts,
        layers: usize,
        parts: usize,
    ) -> Result<PartitionerFacts> {
        let counted = format!("there are {layers} layers and {parts} parts, counted from 0");
        for &(layer, part) in &self.pin {
            ensure!(layer < layers && part < parts, "--pin {layer}:{part}: {counted}");
            facts = facts.with_pin(layer, part);
        }
        for &(first, last) in &self.together {
            ensure!(last < layers, "--together {first}-{last}: {counted}");
            facts = facts.with_group(first..last + 1);
        }
        Ok(facts)
    }

    /// The partition, and below what no bottleneck can be, if it isn't proven to be the best.
    fn cut(
        &self,
        costs: &Costs,
        parts: usize,
        facts: &PartitionerFacts,
    ) -> Result<(Partition, Option<f64>)> {
        let constrained = ConstrainedMinimax::with_facts(facts);
        let default = if *facts == PartitionerFacts::default() {
            "minimax"
        } else {
            Partitioner::name(&constrained)
        };
        let name = self.partitioner.as_deref().unwrap_or(default);
        if name == constrained.name() {
            let solution = constrained.solve(costs, parts)?;
            let bound = (solution.bound < solution.bottleneck).then_some(solution.bound);
            return Ok((solution.partition, bound));
        }
        let partition = partitioner_named(name, facts)?.partition(costs, parts);
        Ok((partition.with_context(|| format!("--partitioner {name}"))?, None))
    }

    /// Refuses what a partitioner made that heeds no constraints.
    fn check(&self, partition: &Partition, report: &Report) -> Result<()> {
        let name = self.partitioner.as_deref().unwrap_or_default();
        let part = |layer| partition.part_of(layer);
        let unpinned = self.pin.iter().find(|(layer, pinned)| part(*layer) != *pinned);
        let parted = self.together.iter().find(|(first, last)| part(*first) != part(*last));
        if let Some((layer, pinned)) = unpinned {
            bail!("--pin {layer}:{pinned} is ignored by {name}: use constrained-minimax");
        }
        if let Some((first, last)) = parted {
            bail!("--together {first}-{last} is ignored by {name}: use constrained-minimax");
        }
        if let Some((rank, needed, lacks)) = report.lacking() {
            bail!(
                "--memory is too small for what {name} cuts, {partition}: rank {rank} needs \
                 {needed} bytes and lacks {lacks}; use constrained-minimax, or give more"
            );
        }
        Ok(())
    }

    fn byte_units(&self) -> bool {
        self.layers.have_byte_units() || self.ranks.have_byte_units()
    }
}

/// Reads two numbers with this between them.
fn pair(text: &str, between: char) -> Option<(usize, usize)> {
    let (first, second) = text.split_once(between)?;
    Some((first.trim().parse().ok()?, second.trim().parse().ok()?))
}

fn group(text: &str) -> Result<(usize, usize), String> {
    pair(text, '-')
        .filter(|(first, last)| first <= last)
        .ok_or_else(|| "give the first layer and the last, as in 2-4".to_owned())
}

fn pin(text: &str) -> Result<(usize, usize), String> {
    pair(text, ':').ok_or_else(|| "give a layer and its part, as in 3:1".to_owned())
}
