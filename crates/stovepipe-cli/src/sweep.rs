//! `stovepipe sweep`: how many micro-batches are best for a fixed amount of work.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use plotters::prelude::*;
use serde::Serialize;
use stovepipe_checkpoint::{Never, lower};
use stovepipe_schedule::{CostModel, Edges, Schedule, Shape, schedule_named, simulate};

use crate::by_name::ByName;
use crate::output::{self, percent, time};

/// Cuts a fixed amount of work into more and more micro-batches: the bubble shrinks, the overhead
/// grows.
///
/// A stage has `work` to do in each direction, so an action takes work / M + overhead. For the
/// flush schedules (gpipe and 1f1b) the best M is near sqrt((P − 1) work / overhead), the
/// continuous optimum of 2 (M + P − 1) (work / M + overhead).
// So that a negative cost gets its own message.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The schedule.
    #[arg(long, value_name = "NAME", default_value = "gpipe", value_parser = ByName::schedule())]
    schedule: String,
    /// Ranks: workers with a device each.
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Time that the whole mini-batch takes on one rank, in each direction.
    #[arg(long, value_name = "T")]
    work: f64,
    /// Fixed time added to every action.
    #[arg(long, value_name = "T")]
    overhead: f64,
    /// Numbers of micro-batches, separated by commas.
    #[arg(long, value_name = "M,…", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128")]
    micro_batches: Vec<usize>,
    /// Draws makespan over micro-batches.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Sweep {
    points: Vec<Point>,
    /// The number of micro-batches with the smallest makespan.
    best: usize,
    /// Null without overhead, where more micro-batches are always better, and for other schedules.
    continuous_optimum: Option<f64>,
}

#[derive(Clone, Copy, Serialize)]
struct Point {
    micro_batches: usize,
    makespan: f64,
    #[serde(skip)]
    bubble: Option<f64>,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<()> {
        let sweep = self.sweep()?;
        if let Some(file) = &self.svg {
            output::write(file, &sweep.picture(&self.schedule)?)?;
        }
        if self.json { output::print_json(&sweep) } else { output::print(&sweep.to_text()) }
    }

    fn sweep(&self) -> Result<Sweep> {
        let schedule = schedule_named(&self.schedule)?;
        let points = self
            .micro_batches
            .iter()
            .map(|&m| self.point(&schedule, m))
            .collect::<Result<Vec<_>>>()?;
        let best = points.iter().copied().min_by(|a, b| a.makespan.total_cmp(&b.makespan));
        let is_flush = matches!(self.schedule.as_str(), "gpipe" | "gpipe-forward" | "1f1b");
        let optimum = ((self.ranks as f64 - 1.0) * self.work / self.overhead).sqrt();
        let best = best.context("--micro-batches is empty: give at least one number")?;
        Ok(Sweep {
            best: best.micro_batches,
            continuous_optimum: (is_flush && self.overhead > 0.0).then_some(optimum),
            points,
        })
    }

    fn point(&self, schedule: &dyn Schedule, micro_batches: usize) -> Result<Point> {
        let shape = Shape::new(self.ranks, micro_batches)
            .with_stages_per_rank(schedule.default_stages_per_rank());
        let plan = schedule.plan(shape)?;
        let each = self.work / (micro_batches * shape.stages_per_rank) as f64;
        let costs = CostModel::uniform(plan.stages(), each, each).with_overhead(self.overhead);
        let stages = plan.stages();
        let program = lower(&plan, &vec![1; stages], &Never, &Edges::chain(stages))?;
        let timeline = simulate(&program, &costs)?;
        Ok(Point { micro_batches, makespan: timeline.makespan(), bubble: timeline.bubble() })
    }
}

impl Sweep {
    fn to_text(&self) -> String {
        let mut table = output::table(["micro-batches", "makespan", "bubble", ""]);
        for point in &self.points {
            let is_best = point.micro_batches == self.best;
            table.add_row([
                point.micro_batches.to_string(),
                time(point.makespan),
                percent(point.bubble),
                if is_best { "best" } else { "" }.to_owned(),
            ]);
        }
        let optimum = self.continuous_optimum.map_or(String::new(), |m| {
            format!("the optimum over all numbers, whole or not, is {}\n", time(m))
        });
        format!("{table}\n{optimum}")
    }

    fn picture(&self, schedule: &str) -> Result<String> {
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
                .y_label_formatter(&|time| format!("{time:.0}"))
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
