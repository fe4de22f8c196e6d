//! `stovepipe partition`: cuts layers into stages by their costs.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use stovepipe_partition::{Costs, Minimax, Partitioner, Uniform};

use crate::output::{self, time};

/// Cuts layers with known costs into contiguous parts.
///
/// minimax finds the best bottleneck there is, then the smallest sum of squares, then the earliest cut.
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
    /// How many parts.
    #[arg(long, value_name = "K")]
    parts: usize,
    /// How they are cut.
    #[arg(long, value_enum, default_value_t = Algorithm::Minimax)]
    partitioner: Algorithm,
    /// Writes JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Algorithm {
    /// By cost: the largest part is as small as possible.
    Minimax,
    /// By number: sizes differ by at most one.
    Uniform,
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
        let partition = match self.partitioner {
            Algorithm::Minimax => Minimax.partition(&costs, self.parts)?,
            Algorithm::Uniform => Uniform.partition(&costs, self.parts)?,
        };
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
