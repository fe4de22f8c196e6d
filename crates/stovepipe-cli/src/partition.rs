//! `stovepipe partition`: cuts layers into stages by their costs.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use stovepipe_partition::{Costs, Partitioner, PartitionerFacts, partitioner_named};

use crate::by_name::ByName;
use crate::output::{self, time};

/// Cuts layers with known costs into contiguous parts.
///
/// A cut is as good as its bottleneck, the cost of the largest part.
// So that a negative cost gets its own message.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The cost of each layer, separated by commas: times, parameters, bytes.
    #[arg(
        long,
        value_name = "C,…",
        value_delimiter = ',',
        allow_hyphen_values = true,
        required = true
    )]
    costs: Vec<f64>,
    /// The number of parts.
    #[arg(long, value_name = "K")]
    parts: usize,
    /// The way they are cut.
    #[arg(
        long,
        value_name = "PARTITIONER",
        default_value = "minimax",
        value_parser = ByName::partitioner()
    )]
    partitioner: String,
    /// The relative speed of each part's rank, which constrained-minimax heeds.
    #[arg(long, value_name = "X,…", value_delimiter = ',')]
    speeds: Option<Vec<f64>>,
    /// Writes JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Cut {
    /// Layers in each part.
    sizes: Vec<usize>,
    /// The cost of the largest part.
    bottleneck: f64,
    /// The cost of each part.
    costs: Vec<f64>,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let costs = Costs::new(self.costs.clone())?;
        let facts = match &self.speeds {
            Some(speeds) => PartitionerFacts::default().with_speeds(&speeds[..]),
            None => PartitionerFacts::default(),
        };
        let partitioner = partitioner_named(&self.partitioner, &facts)?;
        let partition = partitioner.partition(&costs, self.parts)?;
        let cut = Cut {
            sizes: partition.sizes(),
            bottleneck: partition.bottleneck(&costs)?,
            costs: partition.costs(&costs)?,
        };
        if self.json {
            return output::print_json(&cut);
        }
        let mut table = output::table(["part", "layers", "cost"]);
        for (part, range) in partition.ranges().enumerate() {
            let layers = match range.len() {
                1 => range.start.to_string(),
                _ => format!("{} to {}", range.start, range.end - 1),
            };
            table.add_row([part.to_string(), layers, time(cut.costs[part])]);
        }
        let ideal = costs.total() / self.parts as f64;
        output::print(&format!(
            "{table}\nbottleneck {}, mean {}\n",
            time(cut.bottleneck),
            time(ideal)
        ))
    }
}
