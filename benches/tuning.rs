//! Whether the tuner chooses well: everything it may choose from is run, and its choice compared with
//! the best of all. `cargo xtask bench tuning --backend flex` runs it.

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressIterator};
use serde::Serialize;
use stovepipe::Profiling;
use stovepipe::tune::{Choice, Cluster, Time, Tuner};
use stovepipe_benches::report::Destination;
use stovepipe_benches::{BenchPipeline, Machine, Model, On, steps};

/// Runs every configuration that the tuner weighs, and compares its choice with the fastest.
///
/// The fastest of many measured ones is partly the luckiest. So the choice and the fastest are measured
/// again at the end, in turn, and that is what is compared.
#[derive(Parser)]
struct Arguments {
    /// Ranks that there are, with one thread each.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Counted steps of each configuration; two more warm it up.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Rounds of the final comparison.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    destination: Destination,
}

/// The whole report; times in seconds.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    model: Model,
    /// The tuner's choice, measured again.
    chosen: Row,
    /// The fastest of all that was run, measured again.
    fastest: Row,
    /// All that was run, the order of the tuner.
    rows: Vec<Row>,
}

/// A configuration, what it was predicted to take, and what it took.
#[derive(Clone, Serialize)]
struct Row {
    #[serde(flatten)]
    choice: Choice,
    measured: Time,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let model = arguments.model;
    let sizes = std::iter::successors(Some(model.batch), |size| Some(size / 2));
    let sizes: Vec<usize> = sizes.take_while(|&size| size > 0).collect();
    let (x, y) = model.batch();
    let profiling = Profiling::new(sizes)
        .together(model.layers.div_ceil(arguments.ranks))
        .busy_ranks(arguments.ranks - 1);
    let profile = model.builder(arguments.on.backend()?).profile(&profiling, x, y)?;
    let cluster = Cluster::new(arguments.ranks);
    let tuned = Tuner::new(&profile, &cluster).batch(model.batch).tune()?;

    let bar = ProgressBar::new(tuned.choices.len() as u64);
    let mut rows = Vec::new();
    for choice in tuned.choices.iter().progress_with(bar) {
        let mut pipeline = pipeline(&arguments, choice)?;
        let measured = steps(&mut pipeline, model, arguments.steps)?.time();
        rows.push(Row { choice: choice.clone(), measured });
    }
    let fastest = rows.iter().min_by(|a, b| a.measured.median.total_cmp(&b.measured.median));
    let (chosen, fastest) = again(&arguments, &rows[0], fastest.context("nothing was run")?)?;

    print(&rows, &chosen, &fastest);
    let behind = chosen.measured.median / fastest.measured.median - 1.0;
    let spread = chosen.measured.spread.max(fastest.measured.spread) / fastest.measured.median;
    println!(
        "of {} configurations the tuner chose: {}\nthe fastest: {}\nthe choice takes {:+.1}%; \
         the spread of a step is {:.1}%",
        rows.len(),
        chosen.choice.configuration,
        fastest.choice.configuration,
        100.0 * behind,
        100.0 * spread
    );
    let report = Report { machine: arguments.on.machine()?, model, chosen, fastest, rows };
    arguments.destination.write("tuning", &report)
}

fn pipeline(arguments: &Arguments, choice: &Choice) -> Result<BenchPipeline> {
    let builder = arguments.model.builder(arguments.on.backend()?);
    Ok(builder.tune(choice).build()?)
}

/// Measures both again, in turn.
fn again(arguments: &Arguments, chosen: &Row, fastest: &Row) -> Result<(Row, Row)> {
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..arguments.rounds {
        for (taken, row) in taken.iter_mut().zip([chosen, fastest]) {
            let mut pipeline = pipeline(arguments, &row.choice)?;
            taken.extend(steps(&mut pipeline, arguments.model, arguments.steps)?.seconds);
        }
    }
    let [of_chosen, of_fastest] = taken;
    let of = |row: &Row, seconds| Row { choice: row.choice.clone(), measured: Time::of(seconds) };
    Ok((of(chosen, of_chosen), of(fastest, of_fastest)))
}

fn print(rows: &[Row], chosen: &Row, fastest: &Row) {
    const SHOWN: usize = 10;
    let mut table = Table::new();
    table.set_header(["", "configuration", "layers", "predicted", "measured"]);
    let mut add = |what: &str, row: &Row| {
        table.add_row([
            what.to_owned(),
            row.choice.configuration.to_string(),
            row.choice.partition.to_string(),
            format!("{:.3} s", row.choice.seconds),
            format!("{:.3} s ± {:.3}", row.measured.median, row.measured.spread / 2.0),
        ]);
    };
    for (place, row) in rows.iter().take(SHOWN).enumerate() {
        add(&(place + 1).to_string(), row);
    }
    add("chosen, again", chosen);
    add("fastest, again", fastest);
    println!("{table}");
}
