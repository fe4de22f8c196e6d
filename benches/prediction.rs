//! How well a step is predicted from its layers, measured one by one: an even and an uneven model
//! on two stages, next to the prediction that divides one measurement of the whole batch. `cargo
//! xtask bench prediction --backend flex` runs it.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use stovepipe::Profiling;
use stovepipe::partition::Minimax;
use stovepipe::prelude::*;
use stovepipe::recompute::Never;
use stovepipe::schedule::{OneFOneB, Shape};
use stovepipe::tune::{Cluster, Configuration, LayerProfile, Measurement, Profile, Time, Tuner};
use stovepipe_benches::{Bench, Model, deviation, seconds, spread, steps, table};

/// Compares training steps on two stages with what the tuner predicts from a profile of the layers.
///
/// Layers are measured at the size that the micro-batches have, while another thread runs the same
/// layers. Machines change their speed from minute to minute, so that it is done right before and
/// right after the steps, and the mean of both predictions counts. The last column is what becomes
/// of the prediction if only the whole batch is measured, and its time divided by the number of
/// micro-batches.
#[derive(Args)]
struct Arguments {
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    micro_batches: Vec<usize>,
    /// Counted steps of each configuration; two more warm it up.
    #[arg(long, default_value_t = 9)]
    steps: usize,
    /// Counted runs of each layer at each size; two more warm it up.
    #[arg(long, default_value_t = 9)]
    runs: usize,
}

/// The report.
#[derive(Serialize)]
struct Report {
    /// How many rows are predicted within a tenth.
    within_a_tenth: usize,
    /// The mean of all errors, as parts of what was measured and without their sign.
    mean_error: f64,
    /// The same of the ranks' idle times, as parts of the step.
    mean_idle_error: f64,
    rows: Vec<Row>,
}

/// A model and a number of micro-batches; times in seconds.
#[derive(Serialize)]
struct Row {
    model: &'static str,
    micro_batches: usize,
    sizes: Vec<usize>,
    measured: Time,
    predicted: f64,
    predicted_from_the_whole_batch: f64,
    /// How long each rank was idle.
    idle: Vec<f64>,
    predicted_idle: Vec<f64>,
}

impl Row {
    fn error(&self) -> f64 {
        (self.predicted / self.measured.median - 1.0).abs()
    }

    /// The mean error of the ranks' idle times, as a part of the step.
    fn idle_error(&self) -> f64 {
        let apart = self.idle.iter().zip(&self.predicted_idle).map(|(a, b)| (a - b).abs());
        mean(apart) / self.measured.median
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

const RANKS: usize = 2;

fn main() -> Result<()> {
    let bench = Bench::<Arguments>::parse("prediction");
    let mut rows = Vec::new();
    for (name, uneven) in [("even", false), ("uneven", true)] {
        rows.extend(rows_of(&bench, name, Model { uneven, ..bench.model })?);
    }
    print(&rows);
    let within_a_tenth = rows.iter().filter(|row| row.error() <= 0.1).count();
    let mean_error = mean(rows.iter().map(Row::error));
    let mean_idle_error = mean(rows.iter().map(Row::idle_error));
    println!(
        "{within_a_tenth} of {} are predicted within 10%; the mean error is {:.1}%, and that of \
         ranks' idle times {:.1}% of a step",
        rows.len(),
        100.0 * mean_error,
        100.0 * mean_idle_error
    );
    bench.report(Report { within_a_tenth, mean_error, mean_idle_error, rows })
}

fn rows_of(bench: &Bench<Arguments>, name: &'static str, model: Model) -> Result<Vec<Row>> {
    let cluster = Cluster::new(RANKS);
    let whole = profile(bench, model, &[model.batch])?;
    let mut rows = Vec::new();
    for &micro_batches in &bench.own.micro_batches {
        let (small, large) = (model.batch / micro_batches, model.batch.div_ceil(micro_batches));
        let measure = || profile(bench, model, &[small, large]);
        let configuration = Configuration::new(OneFOneB, Never, Shape::new(RANKS, micro_batches));
        let before = measure()?;
        let cut = Minimax.partition(&before.times(small)?, RANKS)?;
        let predict = |profile: &Profile| {
            Tuner::new(profile, &cluster).batch(model.batch).predict(&configuration, &cut)
        };
        let choice = predict(&before)?;
        let mut pipeline = model.builder(bench.backend()?).tune(&choice).build()?;
        let done = steps(&mut pipeline, model, bench.own.steps)?;
        drop(pipeline);
        let after = predict(&measure()?)?;
        let measured = done.time();
        let idle = |rank: usize| {
            Time::of(done.timelines.iter().map(|timeline| timeline.idle(rank)).collect()).median
        };
        let middle = |(a, b): (&f64, &f64)| f64::midpoint(*a, *b);
        rows.push(Row {
            model: name,
            micro_batches,
            sizes: cut.sizes(),
            measured,
            predicted: middle((&choice.seconds, &after.seconds)),
            idle: (0..RANKS).map(idle).collect(),
            predicted_idle: choice.idle.iter().zip(&after.idle).map(middle).collect(),
            predicted_from_the_whole_batch: predict(&divided(&whole, &[small, large])?)?.seconds,
        });
        eprintln!("{name}, M = {micro_batches}: {:.3} s", measured.median);
    }
    Ok(rows)
}

fn profile(bench: &Bench<Arguments>, model: Model, sizes: &[usize]) -> Result<Profile> {
    let profiling = Profiling::new(sizes)
        .runs(bench.own.runs)
        .together(model.layers.div_ceil(RANKS))
        .busy_ranks(RANKS - 1);
    let (x, y) = model.batch();
    Ok(model.builder(bench.backend()?).profile(&profiling, x, y)?)
}

/// The profile of these sizes as it would be if every sample cost what it does in the whole batch.
fn divided(whole: &Profile, sizes: &[usize]) -> Result<Profile> {
    let layers = whole.layers().iter().map(|layer| {
        let whole = &layer.measurements[0];
        let at = |&samples: &usize| {
            let part = samples as f64 / whole.samples as f64;
            let time = |time: Time| Time::exactly(part * time.median);
            Measurement {
                samples,
                forward: time(whole.forward),
                recompute: time(whole.recompute),
                backward: time(whole.backward),
                ..*whole
            }
        };
        let mut measurements: Vec<Measurement> = sizes.iter().map(at).collect();
        measurements.dedup_by_key(|measurement| measurement.samples);
        LayerProfile { measurements, ..layer.clone() }
    });
    Ok(Profile::new(whole.device(), layers.collect())?)
}

fn print(rows: &[Row]) {
    let header = [
        "model",
        "micro-batches",
        "layers",
        "measured",
        "predicted",
        "error",
        "idle",
        "predicted",
        "from the whole batch",
        "error",
    ];
    let rows = rows.iter().map(|row| {
        let error = |predicted: f64| deviation(predicted / row.measured.median);
        [
            row.model.to_owned(),
            row.micro_batches.to_string(),
            format!("{:?}", row.sizes),
            spread(row.measured),
            seconds(row.predicted),
            error(row.predicted),
            row.idle.iter().map(|idle| seconds(*idle)).collect::<Vec<_>>().join(", "),
            row.predicted_idle.iter().map(|idle| seconds(*idle)).collect::<Vec<_>>().join(", "),
            seconds(row.predicted_from_the_whole_batch),
            error(row.predicted_from_the_whole_batch),
        ]
    });
    println!("{}", table(header, rows));
}
