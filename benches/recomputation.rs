//! The price of recomputation: steps under each checkpoint policy, next to what the simulator
//! predicts from the measured stage times, and how much of the recomputation hides behind waiting.
//! `cargo xtask bench recomputation --backend flex` runs it.

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, ExceptLast, Never};
use stovepipe::schedule::{ComputeKind, CostModel, GPipe, OneFOneB, Stage, Timeline, simulate};
use stovepipe::tune::Time;
use stovepipe_benches::{Bench, Steps, seconds, spread, table};

/// Measures training steps with and without recomputation on two stages, one thread each.
///
/// What is recomputed while a rank would wait for a gradient costs nothing. The last columns
/// compare the time spent recomputing on the rank that does most of it with how much longer the
/// step takes.
#[derive(Args)]
struct Arguments {
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8])]
    micro_batches: Vec<usize>,
    /// Stages.
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Counted steps of each configuration; two more warm it up.
    #[arg(long, default_value_t = 7)]
    steps: usize,
}

/// The report.
#[derive(Serialize)]
struct Report {
    stages: usize,
    rows: Vec<Row>,
}

/// A policy and a number of micro-batches; times in seconds.
#[derive(Serialize)]
struct Row {
    schedule: String,
    policy: String,
    micro_batches: usize,
    measured: Time,
    simulated: f64,
    /// Spent recomputing on the rank that does most of it.
    recomputing: f64,
    /// How much longer the step takes than without recomputation.
    longer: f64,
}

fn main() -> Result<()> {
    let bench = Bench::<Arguments>::parse("recomputation");
    ensure!(
        !bench.backend()?.is_lazy(),
        "`{}` queues work, so that nobody knows when it recomputed: measure on another backend",
        bench.on.name
    );
    let schedules: [fn() -> Box<dyn Schedule>; 2] =
        [|| Box::new(OneFOneB), || Box::new(GPipe::default())];
    let policies: [fn() -> Box<dyn CheckpointPolicy>; 3] =
        [|| Box::new(Never), || Box::new(ExceptLast), || Box::new(Always)];
    let mut rows: Vec<Row> = Vec::new();
    for &micro_batches in &bench.own.micro_batches {
        for schedule in schedules {
            let mut never = None;
            for policy in policies {
                let row = measure(&bench, micro_batches, schedule(), policy(), never)?;
                never.get_or_insert(row.measured.median);
                eprintln!("M = {micro_batches}, {}: {:.3} s", row.policy, row.measured.median);
                rows.push(row);
            }
        }
    }
    print(&rows);
    bench.report(Report { stages: bench.own.stages, rows })
}

fn measure(
    bench: &Bench<Arguments>,
    micro_batches: usize,
    schedule: Box<dyn Schedule>,
    policy: Box<dyn CheckpointPolicy>,
    never: Option<f64>,
) -> Result<Row> {
    let Arguments { stages, steps, .. } = bench.own;
    let (name, policy_name) = (schedule.name().to_owned(), policy.name().to_owned());
    let builder = bench.builder()?.stages(stages).micro_batches(micro_batches);
    let mut pipeline = builder.schedule(schedule).checkpoint(policy).build()?;
    let Steps { timelines, seconds } = stovepipe_benches::steps(&mut pipeline, bench.model, steps)?;
    let program = pipeline.program(bench.model.batch)?;
    let simulated = simulate(&program, &CostModel::measured(&timelines, &program))?.makespan();
    let measured = Time::of(seconds);
    let most = |timeline: &Timeline| {
        let recomputing = |stage| timeline.durations(Stage::new(stage), ComputeKind::Recompute);
        (0..stages).map(|stage| recomputing(stage).sum()).fold(0.0, f64::max)
    };
    Ok(Row {
        schedule: name,
        policy: policy_name,
        micro_batches,
        measured,
        simulated,
        recomputing: Time::of(timelines.iter().map(most).collect()).median,
        longer: never.map_or(0.0, |never| measured.median - never),
    })
}

fn print(rows: &[Row]) {
    let header = [
        "schedule",
        "micro-batches",
        "recomputation",
        "measured",
        "simulated",
        "measured / simulated",
        "recomputing",
        "longer",
        "hidden",
    ];
    let rows = rows.iter().map(|row| {
        let hidden = if row.recomputing > 0.0 {
            format!("{:.0}%", 100.0 * (1.0 - row.longer / row.recomputing).clamp(0.0, 1.0))
        } else {
            String::new()
        };
        [
            row.schedule.clone(),
            row.micro_batches.to_string(),
            row.policy.clone(),
            spread(row.measured),
            seconds(row.simulated),
            format!("{:.2}", row.measured.median / row.simulated),
            seconds(row.recomputing),
            seconds(row.longer),
            hidden,
        ]
    });
    println!("{}", table(header, rows));
}
