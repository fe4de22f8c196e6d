//! Whether the tuner chooses well: everything it may choose from is run, and its choice compared
//! with the best of all. `cargo xtask bench tuning --backend flex` runs it.

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressIterator};
use serde::Serialize;
use stovepipe::Profiling;
use stovepipe::tune::{Choice, Cluster, Time, Tuner};
use stovepipe_benches::{Bench, BenchPipeline, seconds, spread, steps, table};

/// Runs every configuration that the tuner weighs, and compares its choice with the fastest.
///
/// The fastest of many measured ones is partly the luckiest. So the choice and the fastest are
/// measured again at the end, in turn, and that is what is compared.
#[derive(Args)]
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
}

/// The report; times in seconds.
#[derive(Serialize)]
struct Report {
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
    let bench = Bench::<Arguments>::parse("tuning");
    let (model, ranks) = (bench.model, bench.own.ranks);
    let sizes = std::iter::successors(Some(model.batch), |size| Some(size / 2));
    let sizes: Vec<usize> = sizes.take_while(|&size| size > 0).collect();
    let (x, y) = model.batch();
    let profiling =
        Profiling::new(sizes).together(model.layers.div_ceil(ranks)).busy_ranks(ranks - 1);
    let profile = bench.builder()?.profile(&profiling, x, y)?;
    let cluster = Cluster::new(ranks);
    let tuned = Tuner::new(&profile, &cluster).batch(model.batch).tune()?;

    let bar = ProgressBar::new(tuned.choices.len() as u64);
    let mut rows = Vec::new();
    for choice in tuned.choices.iter().progress_with(bar) {
        let measured = steps(&mut pipeline(&bench, choice)?, model, bench.own.steps)?.time();
        rows.push(Row { choice: choice.clone(), measured });
    }
    let fastest = rows.iter().min_by(|a, b| a.measured.median.total_cmp(&b.measured.median));
    let (chosen, fastest) = again(&bench, &rows[0], fastest.context("nothing was run")?)?;

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
    bench.report(Report { chosen, fastest, rows })
}

fn pipeline(bench: &Bench<Arguments>, choice: &Choice) -> Result<BenchPipeline> {
    Ok(bench.builder()?.tune(choice).build()?)
}

/// Measures both again, in turn.
fn again(bench: &Bench<Arguments>, chosen: &Row, fastest: &Row) -> Result<(Row, Row)> {
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..bench.own.rounds {
        for (taken, row) in taken.iter_mut().zip([chosen, fastest]) {
            let mut pipeline = pipeline(bench, &row.choice)?;
            taken.extend(steps(&mut pipeline, bench.model, bench.own.steps)?.seconds);
        }
    }
    let [of_chosen, of_fastest] = taken;
    let row = |row: &Row, seconds| Row { choice: row.choice.clone(), measured: Time::of(seconds) };
    Ok((row(chosen, of_chosen), row(fastest, of_fastest)))
}

fn print(rows: &[Row], chosen: &Row, fastest: &Row) {
    const SHOWN: usize = 10;
    let first = rows.iter().take(SHOWN).enumerate();
    let first = first.map(|(place, row)| ((place + 1).to_string(), row));
    let again = [("chosen, again", chosen), ("fastest, again", fastest)];
    let again = again.map(|(what, row)| (what.to_owned(), row));
    let rows = first.chain(again).map(|(what, row)| {
        [
            what,
            row.choice.configuration.to_string(),
            row.choice.partition.to_string(),
            seconds(row.choice.seconds),
            spread(row.measured),
        ]
    });
    println!("{}", table(["", "configuration", "layers", "predicted", "measured"], rows));
}
