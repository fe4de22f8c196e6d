//! Traces of a run: numbers on the terminal, and a folder with pictures, trace and report.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::Table;
use plotters::prelude::*;
use serde::Serialize;
use stovepipe::Step;
use stovepipe::schedule::{CostModel, Panel, Timeline, render_svg, render_trace, simulate};

use crate::arguments::Arguments;
use crate::model::LanguageModel;

/// Stage times are medians over this many of the last steps.
const RECENT: usize = 20;

/// A loss at a step.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Point {
    pub(crate) step: usize,
    pub(crate) loss: f64,
}

/// Everything that a run has measured so far.
pub(crate) struct Run {
    unigram_entropy: f64,
    training: Vec<Point>,
    validation: Vec<Point>,
    timelines: Vec<Timeline>,
}

/// The machine-readable report.
#[derive(Serialize)]
struct Report<'a> {
    stages: usize,
    micro_batches: usize,
    seconds: f64,
    tokens_per_second: f64,
    unigram_entropy: f64,
    validation_loss: f64,
    /// How far the validation loss is below the unigram entropy, as a part of it.
    below_unigram: f64,
    step_seconds: Compared,
    ranks: Vec<Compared>,
    training: &'a [Point],
    validation: &'a [Point],
}

/// A quantity as simulated from the measured stage times, and as measured.
#[derive(Clone, Copy, Serialize)]
struct Compared {
    predicted: f64,
    measured: f64,
}

impl Run {
    pub(crate) fn new(unigram_entropy: f64) -> Self {
        Self {
            unigram_entropy,
            training: Vec::new(),
            validation: Vec::new(),
            timelines: Vec::new(),
        }
    }

    pub(crate) fn trained(&mut self, step: usize, done: Step) {
        self.training.push(Point { step, loss: done.loss });
        self.timelines.push(done.timeline);
        let old = self.timelines.len().saturating_sub(RECENT);
        self.timelines.drain(..old);
    }

    /// Learns from other processes when their ranks did what. All have to call it.
    pub(crate) fn gather(&mut self, pipeline: &mut LanguageModel) -> Result<()> {
        for timeline in &mut self.timelines {
            *timeline = pipeline.gather_timeline(timeline)?;
        }
        Ok(())
    }

    pub(crate) fn validated(&mut self, point: Point) {
        self.validation.push(point);
    }

    pub(crate) fn last_loss(&self) -> f64 {
        self.training.last().map_or(f64::NAN, |point| point.loss)
    }

    /// Prints the bubbles, and writes everything to the folder.
    pub(crate) fn finish(
        &self,
        pipeline: &mut LanguageModel,
        arguments: &Arguments,
        time: Duration,
    ) -> Result<()> {
        // The step of median length stands for all.
        let mut steps: Vec<&Timeline> = self.timelines.iter().collect();
        steps.sort_by(|a, b| a.makespan().total_cmp(&b.makespan()));
        let Some(measured) = steps.get(steps.len() / 2) else {
            println!("no step was run, so there is nothing to report");
            return Ok(());
        };
        let program = pipeline.program(arguments.batch)?;
        let predicted = simulate(&program, &CostModel::measured(&self.timelines, &program))?;
        let compare = |quantity: &dyn Fn(&Timeline) -> Option<f64>| Compared {
            predicted: quantity(&predicted).unwrap_or(f64::NAN),
            measured: quantity(measured).unwrap_or(f64::NAN),
        };
        let ranks: Vec<Compared> =
            (0..measured.ranks()).map(|rank| compare(&|t| t.rank_bubble(rank))).collect();
        let step_seconds = compare(&|t| Some(t.makespan()));
        if arguments.backend()?.is_lazy() {
            println!("this backend queues work: all times below are those of queueing it");
        }
        print_bubbles(&ranks, step_seconds);

        let validation_loss = self.validation.last().map_or(f64::NAN, |point| point.loss);
        let below_unigram = 1.0 - validation_loss / self.unigram_entropy;
        println!(
            "validation loss {validation_loss:.3} nats, {:.1}% below the unigram entropy of {:.3}",
            100.0 * below_unigram,
            self.unigram_entropy
        );
        let seconds = time.as_secs_f64();
        let tokens = (arguments.steps * arguments.batch * arguments.seq) as f64;
        let report = Report {
            stages: program.plan().stages(),
            micro_batches: program.plan().micro_batches(),
            seconds,
            tokens_per_second: tokens / seconds,
            unigram_entropy: self.unigram_entropy,
            validation_loss,
            below_unigram,
            step_seconds,
            ranks,
            training: &self.training,
            validation: &self.validation,
        };
        let panels = [
            Panel { title: "predicted from stage times", timeline: &predicted },
            Panel { title: "measured", timeline: measured },
        ];
        let trace = render_trace(&[("predicted", &predicted), ("measured", measured)], 1.0);
        let out = &arguments.out;
        std::fs::create_dir_all(out).with_context(|| format!("{} can't be made", out.display()))?;
        write(out, "timeline.svg", &render_svg(&panels, "s")?)?;
        write(out, "trace.json", &trace)?;
        write(out, "report.json", &serde_json::to_string_pretty(&report)?)?;
        write(out, "loss.svg", &self.loss_curve()?)?;
        println!(
            "loss.svg, timeline.svg, trace.json (for ui.perfetto.dev) and report.json are in {}",
            out.display()
        );
        Ok(())
    }

    fn loss_curve(&self) -> Result<String> {
        let losses = || {
            self.training.iter().chain(&self.validation).map(|p| p.loss).filter(|l| l.is_finite())
        };
        let top = losses().fold(self.unigram_entropy, f64::max) * 1.05;
        let bottom = losses().fold(self.unigram_entropy, f64::min) * 0.9;
        let steps = self.training.len().max(2) as f64;
        let mut picture = String::new();
        {
            let area = SVGBackend::with_string(&mut picture, (900, 500)).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption("loss in nats per character", ("sans-serif", 22))
                .margin(16)
                .x_label_area_size(40)
                .y_label_area_size(56)
                .build_cartesian_2d(1.0..steps, bottom..top)?;
            chart
                .configure_mesh()
                .x_desc("step")
                .x_label_formatter(&|step| format!("{step:.0}"))
                .y_desc("loss")
                .light_line_style(WHITE)
                .draw()?;
            let xy = |points: &[Point]| {
                points.iter().map(|p| (p.step as f64, p.loss)).collect::<Vec<_>>()
            };
            let (light, dark, grey) =
                (RGBColor(140, 180, 220), RGBColor(20, 70, 130), RGBColor(120, 120, 120));
            let series = [
                ("training", light.stroke_width(1), xy(&self.training)),
                ("validation", dark.stroke_width(3), xy(&self.validation)),
                (
                    "unigram entropy",
                    grey.stroke_width(1),
                    vec![(1.0, self.unigram_entropy), (steps, self.unigram_entropy)],
                ),
            ];
            for (name, style, points) in series {
                chart
                    .draw_series(LineSeries::new(points, style))?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], style));
            }
            chart.configure_series_labels().background_style(WHITE).border_style(grey).draw()?;
            area.present()?;
        }
        Ok(picture)
    }
}

fn print_bubbles(ranks: &[Compared], step_seconds: Compared) {
    let mut table = Table::new();
    table.set_header(["", "predicted", "measured"]);
    let milliseconds = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    table.add_row([
        "step".to_owned(),
        milliseconds(step_seconds.predicted),
        milliseconds(step_seconds.measured),
    ]);
    for (rank, bubble) in ranks.iter().enumerate() {
        let percent = |part: f64| format!("{:.1}%", 100.0 * part);
        table.add_row([
            format!("bubble of rank {rank}"),
            percent(bubble.predicted),
            percent(bubble.measured),
        ]);
    }
    println!(
        "\nOne step as simulated from its stage times, and as measured (bubble: idle / total):\n{table}"
    );
}

fn write(folder: &Path, name: &str, content: &str) -> Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, content).with_context(|| format!("{} can't be written", path.display()))
}
