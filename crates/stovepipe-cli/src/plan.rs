//! `stovepipe plan`: writes a plan.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::by_name::ByName;
use crate::output;
use crate::shape::ShapeArguments;

const EXAMPLES: &str = "\
Examples:
  stovepipe plan --schedule 1f1b --ranks 4 --micro-batches 8
  stovepipe plan --schedule interleaved-1f1b --ranks 2 --micro-batches 4 --stages-per-rank 3
  stovepipe plan --schedule gpipe --ranks 2 --micro-batches 4 --format csv > plan.csv";

/// Writes the plan of a schedule: for each rank, what it does in which order.
///
/// In a cell stand the stage, what it does (F forward, B backward, I and W its two halves, R
/// recompute), and the micro-batch: 2F5 is stage 2's forward of micro-batch 5. The grid gives every
/// action one slot; dots are idle.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The schedule.
    #[arg(long, value_name = "NAME", value_parser = ByName::schedule())]
    schedule: String,
    #[command(flatten)]
    shape: ShapeArguments,
    /// The form in which it is written. `stovepipe check` and `simulate --plan` read csv and json.
    #[arg(long, value_enum, default_value_t = Format::Grid)]
    format: Format,
    /// Same as `--format json`.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    /// For people: aligned, idle slots as dots.
    Grid,
    /// A row for each rank, a cell for each slot.
    Csv,
    /// {"ranks": [["0F0", …], …]}
    Json,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let plan = self.shape.plan(&self.schedule)?;
        match if self.json { Format::Json } else { self.format } {
            Format::Grid => output::print(&plan.to_string()),
            Format::Csv => output::print(&plan.to_csv()),
            Format::Json => output::print(&format!("{}\n", serde_json::to_string(&plan)?)),
        }
    }
}
