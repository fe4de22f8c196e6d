//! `stovepipe simulate`: when every action would run, and what that means.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use stovepipe_schedule::{
    Action, Compute, ComputeKind, Panel, Program, Timeline, render_svg, render_trace,
};

use crate::by_name::ByName;
use crate::costs::{CostArguments, convention};
use crate::output::{self, percent};
use crate::shape::ShapeArguments;
use crate::units::{self, Unit};

const EXAMPLES: &str = "\
Examples:
  stovepipe simulate --schedule 1f1b --ranks 4 --micro-batches 8
  stovepipe simulate --schedule gpipe --ranks 2 --micro-batches 4 --forward 20ms,30ms --svg step.svg
  stovepipe simulate --schedule 1f1b --ranks 4 --micro-batches 8 --forward 20ms \
    --boundary-bytes 16MiB --latency 50us --bandwidth 10Gbit/s
  stovepipe plan --schedule zb-v --ranks 2 --micro-batches 4 --format csv > plan.csv
  stovepipe simulate --plan plan.csv --forward 1 --backward 2 --json";

/// Plays a plan against costs, and says how long it takes and how much of that is idle.
///
/// Give a schedule and its shape, or a plan from a file. Bubble is idle time divided by total time.
///
/// Times have a unit, as in 1.5s, 20ms or 300us, or all are plain numbers of any unit. Bytes may
/// have one, as in 16MiB or 2GB. In JSON times are seconds, or plain as they were given, and bytes
/// are bytes.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct Arguments {
    /// The schedule.
    #[arg(
        long,
        value_name = "NAME",
        group = "source",
        requires_all = ["ranks", "micro_batches"],
        value_parser = ByName::schedule()
    )]
    schedule: Option<String>,
    /// A plan as CSV or JSON, instead of a schedule.
    #[arg(long, value_name = "FILE", group = "source", conflicts_with_all = ["ranks", "micro_batches", "stages_per_rank"])]
    plan: Option<PathBuf>,
    /// Ranks: workers with a device each.
    #[arg(long, value_name = "P")]
    ranks: Option<usize>,
    /// Micro-batches that the mini-batch is cut into.
    #[arg(long, value_name = "M")]
    micro_batches: Option<usize>,
    /// Stages on each rank; by default 2 for schedules of several, otherwise 1.
    #[arg(long, value_name = "V")]
    stages_per_rank: Option<usize>,
    #[command(
        flatten,
        next_help_heading = "Costs of a rank (one value for all, or one for each rank or stage)"
    )]
    costs: CostArguments,
    /// Draws the timeline.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Writes a trace for ui.perfetto.dev or chrome://tracing, a unit of time as a second.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,
    /// Writes JSON.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

#[derive(Serialize)]
struct Results {
    makespan: f64,
    /// Busy time divided by total time; null if the step takes none.
    utilization: Option<f64>,
    /// Idle time divided by total time; null if the step takes none.
    bubble: Option<f64>,
    critical_path: Vec<Action>,
    ranks: Vec<RankResults>,
}

#[derive(Serialize)]
struct RankResults {
    busy: f64,
    idle: f64,
    peak_activations: usize,
    /// Values that have been sent and not yet taken, at most.
    most_queued: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<u64>,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let unit = self.costs.unit()?;
        let program = self.program()?;
        let timeline = self.costs.simulate(&program)?;
        let results = self.results(&program, &timeline)?;
        let name = self.schedule.as_deref().unwrap_or("plan");
        if let Some(file) = &self.svg {
            let panel = Panel { title: name, timeline: &timeline };
            output::write(file, &render_svg(&[panel], unit.symbol())?)?;
        }
        if let Some(file) = &self.trace {
            output::write(file, &render_trace(&[(name, &timeline)], 1.0))?;
        }
        if self.json {
            output::print_json(&results)
        } else {
            let text = results.to_text(unit, self.costs.have_byte_units());
            output::print(&format!("{}{text}", convention(program.plan())))
        }
    }

    fn program(&self) -> Result<Program> {
        if let Some(file) = &self.plan {
            let program = crate::check::read(file, None)?;
            ensure!(
                !self.costs.chooses_recomputation(),
                "--checkpoint doesn't go with --plan: put an R where the plan is to recompute"
            );
            let recomputes = |action: &Compute| action.kind == ComputeKind::Recompute;
            ensure!(
                !self.costs.prices_recomputation()
                    || program.plan().rows().iter().flatten().any(recomputes),
                "--recompute has nothing to price: the plan has no R"
            );
            return Ok(program);
        }
        let shape = ShapeArguments {
            ranks: self.ranks.unwrap_or(0),
            micro_batches: self.micro_batches.unwrap_or(0),
            stages_per_rank: self.stages_per_rank,
        };
        let plan = shape.plan(self.schedule.as_deref().unwrap_or_default())?;
        self.costs.program(&plan)
    }

    fn results(&self, program: &Program, timeline: &Timeline) -> Result<Results> {
        let memory = self.costs.memory(program.plan())?;
        let bytes = memory.map(|stages| timeline.peak_bytes(program, &stages));
        let queues = timeline.queues(|_| 1);
        let rank = |rank: usize| RankResults {
            busy: timeline.busy(rank),
            idle: timeline.idle(rank),
            peak_activations: program.peak_activations(rank),
            most_queued: queues.most(rank),
            peak_bytes: bytes.as_ref().map(|bytes| bytes[rank]),
        };
        Ok(Results {
            makespan: timeline.makespan(),
            utilization: timeline.utilization(),
            bubble: timeline.bubble(),
            critical_path: timeline.critical_path().iter().map(|(_, s)| s.action).collect(),
            ranks: (0..timeline.ranks()).map(rank).collect(),
        })
    }
}

impl Results {
    fn to_text(&self, unit: Unit, byte_units: bool) -> String {
        let mut header = vec!["rank", "busy", "idle", "kept micro-batches", "waiting values"];
        let bytes = self.ranks.first().is_some_and(|rank| rank.peak_bytes.is_some());
        if bytes {
            header.push("kept bytes");
        }
        let mut table = output::table(header);
        for (number, rank) in self.ranks.iter().enumerate() {
            let mut row = vec![
                number.to_string(),
                unit.show(rank.busy),
                unit.show(rank.idle),
                rank.peak_activations.to_string(),
                rank.most_queued.to_string(),
            ];
            row.extend(rank.peak_bytes.map(|bytes| units::show_bytes(bytes, byte_units)));
            table.add_row(row);
        }
        format!(
            "makespan {}, utilization {}, bubble {} (idle / total)\n{table}\n\
             kept: the most that a rank holds between forward and backward, counted for each of its stages; in \
             bytes with the values that wait\n\
             waiting: the most values on a rank at once that were sent to it and not yet taken\n\
             critical path: {}\n",
            unit.show(self.makespan),
            percent(self.utilization),
            percent(self.bubble),
            shortened(&self.critical_path),
        )
    }
}

/// The start and the end of a long path.
fn shortened(path: &[Action]) -> String {
    const SHOWN: usize = 12;
    let text =
        |actions: &[Action]| actions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    if path.len() <= 2 * SHOWN {
        return text(path);
    }
    let (first, last) = (&path[..SHOWN], &path[path.len() - SHOWN..]);
    format!("{} … ({} more) … {}", text(first), path.len() - 2 * SHOWN, text(last))
}
