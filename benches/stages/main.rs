//! One stage against two, for several numbers of micro-batches, next to what the simulator predicts
//! from the measured stage times. Run it with `cargo xtask bench --backend flex`.

mod calibration;

use anyhow::Result;
use clap::Parser;
use comfy_table::Table;
use serde::Serialize;
use stovepipe::prelude::*;
use stovepipe::schedule::{CostModel, simulate};
use stovepipe_benches::report::{Destination, Machine};
use stovepipe_benches::{Model, seconds, timelines};

/// Measures training steps of a Transformer with one and with two stages, one thread each.
///
/// The table compares equal numbers of micro-batches. The report opens with a calibration: how much
/// two independent processes get done at once, compared with one, on this machine.
#[derive(Parser)]
struct Arguments {
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    micro_batches: Vec<usize>,
    /// Stages compared with one.
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Counted steps of each configuration; two more warm it up.
    #[arg(long, default_value_t = 7)]
    steps: usize,
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    destination: Destination,
    /// Runs one stage for the calibration and prints the seconds of a step.
    #[arg(long, hide = true)]
    calibrate: bool,
}

/// The whole report.
#[derive(Serialize)]
struct Report {
    backend: &'static str,
    machine: Machine,
    model: Model,
    stages: usize,
    steps: usize,
    /// Work that two independent processes get done at once, divided by that of one alone; 2 at best.
    two_processes_against_one: f64,
    rows: Vec<Row>,
}

/// One number of micro-batches; times in seconds, medians over the steps.
#[derive(Serialize)]
struct Row {
    micro_batches: usize,
    one_stage: f64,
    split: f64,
    simulated: f64,
    simulated_to_measured: f64,
    speedup: f64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.calibrate {
        let (step, _) = measure(&arguments, 1, 8)?;
        println!("{step}");
        return Ok(());
    }
    let two_processes_against_one =
        calibration::two_against_one(&arguments.model, arguments.steps)?;
    println!(
        "two independent processes at once do {two_processes_against_one:.2} times the work of one\n"
    );

    let mut rows = Vec::new();
    for &micro_batches in &arguments.micro_batches {
        let (one_stage, _) = measure(&arguments, 1, micro_batches)?;
        let (split, simulated) = measure(&arguments, arguments.stages, micro_batches)?;
        rows.push(Row {
            micro_batches,
            one_stage,
            split,
            simulated,
            simulated_to_measured: simulated / split,
            speedup: one_stage / split,
        });
        eprintln!("M = {micro_batches}: {one_stage:.3} s, {split:.3} s");
    }
    print(&rows, arguments.stages);
    let report = Report {
        backend: "flex",
        machine: Machine::this()?,
        model: arguments.model,
        stages: arguments.stages,
        steps: arguments.steps,
        two_processes_against_one,
        rows,
    };
    arguments.destination.write("stages", &report)
}

/// The median step, and the step as simulated from the median stage times, in seconds.
fn measure(arguments: &Arguments, stages: usize, micro_batches: usize) -> Result<(f64, f64)> {
    let Arguments { model, steps, .. } = *arguments;
    let builder = model.builder().stages(stages).micro_batches(micro_batches).schedule(OneFOneB);
    let mut pipeline = builder.build()?;
    let timelines = timelines(&mut pipeline, model, steps)?;
    let program = pipeline.program(model.batch)?;
    let simulated = simulate(&program, &CostModel::measured(&timelines, &program))?.makespan();
    Ok((seconds(&timelines).median, simulated))
}

fn print(rows: &[Row], stages: usize) {
    let mut table = Table::new();
    table.set_header([
        "micro-batches".to_owned(),
        "1 stage".to_owned(),
        format!("{stages} stages"),
        "simulated".to_owned(),
        "simulated / measured".to_owned(),
        "speedup".to_owned(),
    ]);
    for row in rows {
        table.add_row([
            row.micro_batches.to_string(),
            format!("{:.3} s", row.one_stage),
            format!("{:.3} s", row.split),
            format!("{:.3} s", row.simulated),
            format!("{:.2}", row.simulated_to_measured),
            format!("{:.2}", row.speedup),
        ]);
    }
    println!("{table}");
}
