//! `stovepipe sweep`: how many micro-batches are best for a fixed amount of work.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use plotters::prelude::*;
use serde::Serialize;
use stovepipe_schedule::{Plan, PlanError, schedule_named};

use crate::by_name::ByName;
use crate::costs::CostArguments;
use crate::output::{self, percent, time};
use crate::shape::ShapeArguments;
use crate::units::{self, Amount, Unit};

const EXAMPLES: &str = "\
Examples:
  stovepipe sweep --ranks 4 --work 32 --overhead 0.5
  stovepipe sweep --schedule 1f1b --ranks 8 --forward 640ms --overhead 500us --latency 1ms
  stovepipe sweep --schedule interleaved-1f1b --ranks 4 --stages-per-rank 3 --work 32s \
    --overhead 0.5s --micro-batches 4,8,12,16 --svg sweep.svg
  stovepipe sweep --schedule forward-only --ranks 4 --forward 32 --overhead 0.5 --json";

/// Cuts a fixed amount of work into more and more micro-batches: the bubble shrinks, the overhead
/// grows.
///
/// Costs are those of a whole rank for the whole mini-batch. A micro-batch has 1/M of what grows
/// with samples: times of forward, backward, weight gradient and recomputation, bytes of boundaries
/// and activations. The rest is paid for every action, every message, or once.
///
/// Where nothing but actions costs time, the best M of gpipe and 1f1b is near sqrt((P − 1) (F + B)
/// / (2 overhead)). That is the continuous optimum of (M + P − 1) ((F + B) / M + 2 overhead).
///
/// Times have a unit, as in 1.5s, 20ms or 300us, or all are plain numbers of any unit. Bytes may
/// have one, as in 16MiB or 2GB. In JSON times are seconds, or plain as they were given, and bytes
/// are bytes.
// So that a negative cost gets its own message.
#[derive(Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("amount").args(["work", "forward"]).required(true))]
pub(crate) struct Arguments {
    /// The schedule.
    #[arg(long, value_name = "NAME", default_value = "gpipe", value_parser = ByName::schedule())]
    schedule: String,
    /// Ranks: workers with a device each.
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Stages on each rank; by default 2 for schedules of several, otherwise 1.
    #[arg(long, value_name = "V")]
    stages_per_rank: Option<usize>,
    /// Numbers of micro-batches, separated by commas. Those that the schedule can't do are left
    /// out.
    #[arg(long, value_name = "M,…", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128")]
    micro_batches: Vec<usize>,
    /// Time that a rank needs in each direction: --forward and --backward in one.
    #[arg(long, value_name = "T", value_parser = units::time, conflicts_with = "backward")]
    work: Option<Amount>,
    #[command(
        flatten,
        next_help_heading = "Costs of a rank for the whole mini-batch (one value for all, or one for \
                             each rank or stage)"
    )]
    costs: CostArguments,
    /// Draws makespan over micro-batches.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Writes JSON.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

#[derive(Serialize)]
struct Sweep {
    points: Vec<Point>,
    /// The number of micro-batches with the smallest makespan.
    best: usize,
    /// Null without overhead, where more micro-batches are always better, with other costs than
    /// those of actions, and for other schedules.
    continuous_optimum: Option<f64>,
    refused: Vec<Refusal>,
}

#[derive(Clone, Copy, Serialize)]
struct Point {
    micro_batches: usize,
    makespan: f64,
    bubble: Option<f64>,
    /// The most bytes of activations on any rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Refusal {
    micro_batches: usize,
    reason: String,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let costs = match &self.work {
            Some(work) => self.costs.with_work(work),
            None => self.costs.clone(),
        };
        let unit = costs.unit()?;
        let sweep = self.sweep(&costs)?;
        if let Some(file) = &self.svg {
            output::write(file, &sweep.picture(&self.schedule, unit)?)?;
        }
        if self.json {
            output::print_json(&sweep)
        } else {
            output::print(&sweep.to_text(unit, costs.have_byte_units()))
        }
    }

    fn sweep(&self, costs: &CostArguments) -> Result<Sweep> {
        let schedule = schedule_named(&self.schedule)?;
        let (mut points, mut refused) = (Vec::new(), Vec::new());
        let bar = output::progress(self.micro_batches.len(), "simulating");
        for &micro_batches in bar.wrap_iter(self.micro_batches.iter()) {
            let (ranks, stages_per_rank) = (self.ranks, self.stages_per_rank);
            let shape = ShapeArguments { ranks, micro_batches, stages_per_rank };
            match schedule.plan(shape.shape(&schedule)) {
                Ok(plan) => points.push(point(&plan, &costs.of_micro_batch(micro_batches))?),
                Err(error @ PlanError::Unsupported { .. }) => {
                    refused.push(Refusal { micro_batches, reason: error.to_string() });
                }
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("--schedule {} {shape}", self.schedule));
                }
            }
        }
        let best = points.iter().min_by(|a, b| a.makespan.total_cmp(&b.makespan));
        let Some(best) = best.map(|best| best.micro_batches) else {
            let reason = refused.first().map_or("give at least one", |refusal| &refusal.reason);
            bail!("--micro-batches has no number that can be run: {reason}");
        };
        Ok(Sweep { best, continuous_optimum: self.optimum(costs), points, refused })
    }

    /// The best of all numbers of micro-batches, whole or not, where there is a formula.
    fn optimum(&self, costs: &CostArguments) -> Option<f64> {
        let (forward, backward, overhead) = costs.of_actions_alone()?;
        let (work, overhead) = match self.schedule.as_str() {
            "gpipe" | "gpipe-forward" | "1f1b" => (forward + backward, 2.0 * overhead),
            "forward-only" => (forward, overhead),
            _ => return None,
        };
        let optimum = ((self.ranks as f64 - 1.0) * (work / overhead)).sqrt();
        (overhead > 0.0 && optimum.is_finite()).then_some(optimum)
    }
}

fn point(plan: &Plan, costs: &CostArguments) -> Result<Point> {
    let program = costs.program(plan)?;
    let timeline = costs.simulate(&program)?;
    let memory = costs.memory(plan)?;
    let most = |stages: Vec<_>| {
        (0..plan.ranks()).map(|rank| program.peak_bytes(rank, &stages)).max().unwrap_or(0)
    };
    Ok(Point {
        micro_batches: plan.micro_batches(),
        makespan: timeline.makespan(),
        bubble: timeline.bubble(),
        peak_bytes: memory.map(most),
    })
}

impl Sweep {
    fn to_text(&self, unit: Unit, byte_units: bool) -> String {
        let mut header = vec!["micro-batches", "makespan", "bubble", ""];
        let bytes = self.points.iter().any(|point| point.peak_bytes.is_some());
        if bytes {
            header.insert(3, "most kept bytes");
        }
        let mut table = output::table(header);
        for point in &self.points {
            let is_best = point.micro_batches == self.best;
            let mut row = vec![
                point.micro_batches.to_string(),
                unit.show(point.makespan),
                percent(point.bubble),
            ];
            row.extend(point.peak_bytes.map(|bytes| units::show_bytes(bytes, byte_units)));
            row.push(if is_best { "best" } else { "" }.to_owned());
            table.add_row(row);
        }
        let mut text = format!("{table}\n");
        if let Some(optimum) = self.continuous_optimum {
            let optimum = time(optimum);
            text.push_str(&format!("the optimum over all numbers, whole or not, is {optimum}\n"));
        }
        for refusal in &self.refused {
            text.push_str(&format!("not listed: {}\n", refusal.reason));
        }
        text
    }

    fn picture(&self, schedule: &str, unit: Unit) -> Result<String> {
        let xs = || self.points.iter().map(|p| p.micro_batches as f64);
        let ys = || self.points.iter().map(|p| p.makespan);
        let (first, last) = (xs().fold(f64::MAX, f64::min), xs().fold(1.0, f64::max));
        let top = ys().fold(0.0, f64::max) * 1.05;
        let mut picture = String::new();
        {
            let area = SVGBackend::with_string(&mut picture, (900, 500)).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption(format!("{schedule}: makespan over micro-batches"), ("sans-serif", 22))
                .margin(16)
                .x_label_area_size(40)
                .y_label_area_size(64)
                .build_cartesian_2d((first * 0.9..last * 1.1).log_scale().base(2.0), 0.0..top)?;
            chart
                .configure_mesh()
                .x_desc("micro-batches")
                .y_desc("makespan")
                .x_label_formatter(&|m| format!("{m:.0}"))
                .y_label_formatter(&|time| unit.show(*time))
                .light_line_style(WHITE)
                .draw()?;
            let mut points: Vec<(f64, f64)> = xs().zip(ys()).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (blue, red) = (RGBColor(20, 70, 130), RGBColor(190, 60, 40));
            chart.draw_series(LineSeries::new(points.clone(), blue.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|&at| Circle::new(at, 4, blue.filled())))?;
            let best = points.iter().copied().filter(|(m, _)| *m == self.best as f64);
            chart
                .draw_series(best.map(|at| Circle::new(at, 7, red.stroke_width(2))))?
                .label(format!("best: {} micro-batches", self.best))
                .legend(move |(x, y)| Circle::new((x + 10, y), 5, red.stroke_width(2)));
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperMiddle)
                .background_style(WHITE)
                .border_style(BLACK)
                .draw()?;
            area.present()?;
        }
        Ok(picture)
    }
}
