//! `stovepipe compare`: every schedule that fits, side by side.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use stovepipe_schedule::{Mode, NamedSchedule, Plan, PlanError, Schedule, schedules};

use crate::costs::CostArguments;
use crate::output::{self, percent, time};
use crate::shape::ShapeArguments;
use crate::units::{self, Unit};

const EXAMPLES: &str = "\
Examples:
  stovepipe compare --ranks 4 --micro-batches 8
  stovepipe compare --ranks 4 --micro-batches 8 --forward 20ms --backward 40ms --latency 1ms
  stovepipe compare --ranks 2 --micro-batches 8 --activation-bytes 64MiB --checkpoint always";

/// Simulates every schedule that fits the shape, and lists them by makespan.
///
/// Costs are those of a whole rank: a schedule with V stages on each rank shares them out. Without
/// --stages-per-rank each schedule gets the number of stages per rank that it is made for.
///
/// Times have a unit, as in 1.5s, 20ms or 300us, or all are plain numbers of any unit. Bytes may
/// have one, as in 16MiB or 2GB. In JSON times are seconds, or plain as they were given, and bytes
/// are bytes.
// So that a negative cost gets its own message.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    shape: ShapeArguments,
    #[command(
        flatten,
        next_help_heading = "Costs of a rank (one value for all, or one for each rank or stage)"
    )]
    costs: CostArguments,
    /// Writes JSON.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    schedules: Vec<Row>,
    refused: Vec<Refusal>,
}

#[derive(Serialize)]
struct Row {
    schedule: String,
    stages_per_rank: usize,
    makespan: f64,
    utilization: Option<f64>,
    bubble: Option<f64>,
    idle: Vec<f64>,
    /// Counted for each stage: a stage is a 1/V part of a rank.
    peak_activations: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<Vec<u64>>,
    messages: usize,
    splits_backward: bool,
}

#[derive(Serialize)]
struct Refusal {
    schedule: String,
    reason: String,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let unit = self.costs.unit()?;
        let mut comparison = Comparison { schedules: Vec::new(), refused: Vec::new() };
        let bar = output::progress(schedules().len(), "simulating");
        for schedule in bar.wrap_iter(schedules().iter().map(NamedSchedule::make)) {
            match schedule.plan(self.shape.shape(&schedule)) {
                Ok(plan) if plan.mode() == Mode::ForwardOnly => {}
                Ok(plan) => comparison.schedules.push(self.row(&schedule, &plan)?),
                Err(error @ (PlanError::EmptyShape { .. } | PlanError::TooLarge { .. })) => {
                    return Err(error).with_context(|| self.shape.to_string());
                }
                Err(error) => comparison.refused.push(Refusal {
                    schedule: schedule.name().to_owned(),
                    reason: error.to_string(),
                }),
            }
        }
        if comparison.schedules.is_empty() {
            let reason = comparison.refused.first().map(|r| r.reason.clone()).unwrap_or_default();
            bail!("{}: no schedule fits: {reason}", self.shape);
        }
        comparison.schedules.sort_by(|a, b| a.makespan.total_cmp(&b.makespan));
        if self.json {
            output::print_json(&comparison)
        } else {
            output::print(&comparison.to_text(unit, self.costs.have_byte_units()))
        }
    }

    fn row(&self, schedule: &dyn Schedule, plan: &Plan) -> Result<Row> {
        let program = self.costs.program(plan)?;
        let timeline = self.costs.simulate(&program)?;
        let memory = self.costs.memory(plan)?;
        let ranks = 0..plan.ranks();
        let messages = ranks.clone().flat_map(|rank| program.row(rank));
        Ok(Row {
            schedule: schedule.name().to_owned(),
            stages_per_rank: plan.stages() / plan.ranks(),
            makespan: timeline.makespan(),
            utilization: timeline.utilization(),
            bubble: timeline.bubble(),
            idle: ranks.clone().map(|rank| timeline.idle(rank)).collect(),
            peak_activations: ranks.clone().map(|rank| program.peak_activations(rank)).collect(),
            peak_bytes: memory.map(|stages| timeline.peak_bytes(&program, &stages)),
            messages: messages.filter(|a| a.compute().is_none()).count() / 2,
            splits_backward: plan.splits_backward(),
        })
    }
}

impl Comparison {
    fn to_text(&self, unit: Unit, byte_units: bool) -> String {
        let mut header = vec![
            "schedule",
            "stages per rank",
            "makespan",
            "bubble",
            "idle by rank",
            "kept by rank",
            "messages",
            "backward",
        ];
        let bytes = self.schedules.iter().any(|row| row.peak_bytes.is_some());
        if bytes {
            header.push("kept bytes by rank");
        }
        let mut table = output::table(header);
        for row in &self.schedules {
            // In parts of a rank, so that schedules with different numbers of stages compare.
            let kept = |peak: &usize| time(*peak as f64 / row.stages_per_rank as f64);
            let mut cells = vec![
                row.schedule.clone(),
                row.stages_per_rank.to_string(),
                unit.show(row.makespan),
                percent(row.bubble),
                by_rank(row.idle.iter().map(|idle| unit.show(*idle))),
                by_rank(row.peak_activations.iter().map(kept)),
                row.messages.to_string(),
                if row.splits_backward { "split" } else { "whole" }.to_owned(),
            ];
            let shown = |bytes: &u64| units::show_bytes(*bytes, byte_units);
            cells.extend(row.peak_bytes.iter().map(|bytes| by_rank(bytes.iter().map(shown))));
            table.add_row(cells);
        }
        let mut text = format!(
            "{table}\ncosts are those of a whole rank, shared among its stages\n\
             kept: the most micro-batches whose activations a whole rank holds at once\n"
        );
        for refusal in &self.refused {
            text.push_str(&format!("not listed: {}\n", refusal.reason));
        }
        text
    }
}

/// One value for each rank, or one where all are the same.
fn by_rank(values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    match values.split_first() {
        Some((first, rest)) if rest.len() > 1 && rest.iter().all(|value| value == first) => {
            format!("{first} each")
        }
        _ => values.join(", "),
    }
}
