//! One stage against two, for several numbers of micro-batches, next to what the simulator predicts
//! from the measured stage times, and next to PyTorch's where it is there. Run it with
//! `cargo xtask bench stages --backend flex`.

mod calibration;
mod torch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use stovepipe::schedule::{CostModel, OneFOneB, simulate};
use stovepipe::tune::Time;
use stovepipe_benches::{Bench, BenchPipeline, Steps, seconds, steps, table};

/// Measures training steps of a Transformer with one and with two stages, one thread each.
///
/// The table compares equal numbers of micro-batches. The report opens with a calibration: how much
/// two independent processes get done at once, compared with one, on this machine. Everything is
/// measured in several rounds, so that a change in the machine's speed meets all alike.
#[derive(Args)]
struct Arguments {
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    micro_batches: Vec<usize>,
    /// Stages compared with one.
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Rounds.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Counted steps of each configuration in a round; two more warm it up.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// A Python that has PyTorch, to train the same model with.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// Runs one stage for the calibration and prints the seconds of a step.
    #[arg(long, hide = true)]
    calibrate: bool,
}

/// The report.
#[derive(Serialize)]
struct Report {
    stages: usize,
    steps: usize,
    /// Work that two independent processes get done at once, divided by that of one alone; 2 at
    /// best.
    two_processes_against_one: f64,
    rows: Vec<Row>,
    against_torch: Option<AgainstTorch>,
}

/// One number of micro-batches; times in seconds, medians over the steps.
#[derive(Serialize)]
struct Row {
    micro_batches: usize,
    one_stage: f64,
    split: f64,
    /// None where timelines say when work was queued.
    simulated: Option<f64>,
    simulated_to_measured: Option<f64>,
    speedup: f64,
    /// PyTorch's medians by schedule.
    torch: BTreeMap<&'static str, f64>,
}

/// Our time divided by PyTorch's, each at its best number of micro-batches, and PyTorch at its best
/// schedule.
#[derive(Serialize)]
struct AgainstTorch {
    one_stage: f64,
    split: f64,
    /// PyTorch's version.
    version: String,
}

/// All that was measured of one number of micro-batches.
#[derive(Default)]
struct Measured {
    one_stage: Steps,
    split: Steps,
    torch: BTreeMap<&'static str, Vec<f64>>,
}

fn main() -> Result<()> {
    let bench = Bench::<Arguments>::parse("stages");
    let Bench { own: arguments, on, model, .. } = &bench;
    if arguments.calibrate {
        println!("{}", measure(&bench, 1, 8)?.time().median);
        return Ok(());
    }
    println!("{}", on.machine()?);
    let two_processes_against_one =
        calibration::two_against_one(on, model, arguments.rounds * arguments.steps)?;
    println!(
        "two independent processes at once do {two_processes_against_one:.2} times the work of \
         one\n"
    );

    let why = torch::refuses(model, arguments.stages, &arguments.micro_batches);
    if let (Some(_), Some(why)) = (&arguments.torch, why) {
        eprintln!("PyTorch is NOT MEASURED: {why}");
    }
    let python = arguments.torch.as_deref().filter(|_| why.is_none());
    let mut measured: BTreeMap<usize, Measured> = BTreeMap::new();
    let mut torch_version = None;
    for round in 1..=arguments.rounds {
        for &micro_batches in &arguments.micro_batches {
            let measured = measured.entry(micro_batches).or_default();
            measured.one_stage.extend(measure(&bench, 1, micro_batches)?);
            measured.split.extend(measure(&bench, arguments.stages, micro_batches)?);
            // Right after: the machine may be faster a minute later.
            let Some(python) = python else { continue };
            for schedule in torch::SCHEDULES {
                let (stages, steps) = (arguments.stages, arguments.steps);
                // PyTorch's schedules refuse fewer micro-batches than stages.
                if schedule == "single" || micro_batches >= stages {
                    let run = torch::Run { schedule, stages, micro_batches, steps };
                    let torch::Line { seconds, version } = run.measure(python, on, model)?;
                    measured.torch.entry(schedule).or_default().extend(seconds);
                    torch_version = Some(version);
                }
            }
        }
        eprintln!("round {round} of {}", arguments.rounds);
    }
    let rows = measured
        .into_iter()
        .map(|(micro_batches, measured)| row(&bench, micro_batches, measured))
        .collect::<Result<Vec<_>>>()?;
    print(&rows, arguments.stages);
    let against_torch = torch_version.and_then(|version| compare(&rows, version));
    if let Some(AgainstTorch { one_stage, split, version }) = &against_torch {
        println!(
            "each at its best: one stage takes {one_stage:.2} times PyTorch {version}'s time, {} stages \
             {split:.2} times",
            arguments.stages
        );
    }
    bench.report(Report {
        stages: arguments.stages,
        steps: arguments.rounds * arguments.steps,
        two_processes_against_one,
        rows,
        against_torch,
    })
}

fn pipeline(
    bench: &Bench<Arguments>,
    stages: usize,
    micro_batches: usize,
) -> Result<BenchPipeline> {
    let builder = bench.builder()?.stages(stages).micro_batches(micro_batches);
    Ok(builder.schedule(OneFOneB).build()?)
}

fn measure(bench: &Bench<Arguments>, stages: usize, micro_batches: usize) -> Result<Steps> {
    steps(&mut pipeline(bench, stages, micro_batches)?, bench.model, bench.own.steps)
}

/// Medians, and the step as simulated from the median stage times.
fn row(bench: &Bench<Arguments>, micro_batches: usize, measured: Measured) -> Result<Row> {
    let simulated = if bench.backend()?.is_lazy() {
        None
    } else {
        let program =
            pipeline(bench, bench.own.stages, micro_batches)?.program(bench.model.batch)?;
        let costs = CostModel::measured(&measured.split.timelines, &program);
        Some(simulate(&program, &costs)?.makespan())
    };
    let (one_stage, split) = (measured.one_stage.time().median, measured.split.time().median);
    let torch = measured.torch.into_iter();
    Ok(Row {
        micro_batches,
        one_stage,
        split,
        simulated,
        simulated_to_measured: simulated.map(|simulated| simulated / split),
        speedup: one_stage / split,
        torch: torch.map(|(schedule, seconds)| (schedule, Time::of(seconds).median)).collect(),
    })
}

fn compare(rows: &[Row], version: String) -> Option<AgainstTorch> {
    let best = |times: &dyn Fn(&Row) -> Option<f64>| rows.iter().filter_map(times).reduce(f64::min);
    let one_stage = best(&|row| Some(row.one_stage))?;
    let split = best(&|row| Some(row.split))?;
    let torch = |single| {
        best(&|row| {
            let torch = row.torch.iter();
            let times = torch.filter(|(schedule, _)| (**schedule == "single") == single);
            times.map(|(_, seconds)| *seconds).reduce(f64::min)
        })
    };
    Some(AgainstTorch {
        one_stage: one_stage / torch(true)?,
        split: split / torch(false)?,
        version,
    })
}

fn print(rows: &[Row], stages: usize) {
    // Not every number of micro-batches has all.
    let schedules: BTreeSet<&str> = rows.iter().flat_map(|row| row.torch.keys().copied()).collect();
    let header = ["micro-batches".to_owned(), "1 stage".to_owned(), format!("{stages} stages")];
    let header = header
        .into_iter()
        .chain(["simulated", "simulated / measured", "speedup"].into_iter().map(str::to_owned));
    let of_torch = schedules.iter().map(|schedule| format!("PyTorch, {schedule}"));
    let header = header.chain(of_torch);
    let rows = rows.iter().map(|row| {
        let cells = [
            row.micro_batches.to_string(),
            seconds(row.one_stage),
            seconds(row.split),
            row.simulated.map(seconds).unwrap_or_default(),
            row.simulated_to_measured.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            format!("{:.2}", row.speedup),
        ];
        let of_torch = schedules
            .iter()
            .map(|schedule| row.torch.get(schedule).map(|time| seconds(*time)).unwrap_or_default());
        cells.into_iter().chain(of_torch).collect::<Vec<_>>()
    });
    println!("{}", table(header, rows));
}
