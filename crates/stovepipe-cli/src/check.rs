//! `stovepipe check`: reads a plan file and says what it is, or what is wrong with it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use stovepipe_schedule::{ComputeKind, Mode, Program};

use crate::{input, output};

const EXAMPLES: &str = "\
Examples:
  stovepipe plan --schedule zb-h1 --ranks 4 --micro-batches 8 --format csv > plan.csv
  stovepipe check plan.csv
  stovepipe check plan.csv --in-flight 2 --json";

/// Checks a plan from a file: that no work is lost, doubled or out of order, and that no rank waits
/// forever. Shows the grid with the first bad cell in brackets if it isn't so.
///
/// CSV has a row for each rank and an action in each cell (0F0, 0B0, …; empty cells are idle); JSON
/// is {"ranks": [["0F0", …], …]}. A file may hold communication too (0SEND_F0, 1RECV_F0, …); then
/// all of it has to be there.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The plan, as CSV or JSON.
    file: PathBuf,
    /// The number of messages that may be on their way from one rank to another before a send keeps
    /// its rank waiting; 0 is a rendezvous. By default sends never wait.
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,
    /// Writes JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Facts {
    ranks: usize,
    stages: usize,
    micro_batches: usize,
    actions: usize,
    trains: bool,
    splits_backward: bool,
    recomputes: bool,
    peak_activations: Vec<usize>,
}

/// Reads a plan file.
pub(crate) fn read(file: &Path, in_flight: Option<usize>) -> Result<Program> {
    let text = input::text(file)?;
    Program::read(&text, in_flight).with_context(|| format!("{} is refused", file.display()))
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let program = read(&self.file, self.in_flight)?;
        let plan = program.plan();
        let kinds = || plan.rows().iter().flatten().map(|action| action.kind);
        let facts = Facts {
            ranks: plan.ranks(),
            stages: plan.stages(),
            micro_batches: plan.micro_batches(),
            actions: kinds().count(),
            trains: plan.mode() == Mode::Training,
            splits_backward: plan.splits_backward(),
            recomputes: kinds().any(|kind| kind == ComputeKind::Recompute),
            peak_activations: (0..plan.ranks()).map(|r| program.peak_activations(r)).collect(),
        };
        if self.json {
            return output::print_json(&facts);
        }
        let purpose = match (facts.trains, facts.splits_backward) {
            (false, _) => "evaluation, forwards only",
            (true, false) => "training",
            (true, true) => "training, with split backwards",
        };
        let recomputes = if facts.recomputes { ", with recomputation" } else { "" };
        let peaks: Vec<_> = facts.peak_activations.iter().map(ToString::to_string).collect();
        output::print(&format!(
            "a valid plan for {purpose}{recomputes}: {} ranks, {} stages, {} micro-batches, {} actions\n\
             micro-batches kept at most, by rank: {}\n",
            facts.ranks,
            facts.stages,
            facts.micro_batches,
            facts.actions,
            peaks.join(", ")
        ))
    }
}
