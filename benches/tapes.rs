//! The bookkeeping of tapes: the same operations with few and with many micro-batches in flight.
//! `cargo xtask bench tapes --backend flex` runs it.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use stovepipe::prelude::*;
use stovepipe::schedule::{GPipe, OneFOneB};
use stovepipe::tune::Time;
use stovepipe_benches::{Bench, Model, seconds, spread, steps, table};

/// Measures steps of small blocks under 1F1B, which has as many micro-batches in flight as there
/// are ranks, and under GPipe, which has all of them.
///
/// Both do the same operations, and no rank waits longer. What GPipe takes more is the bookkeeping
/// of Burn's tapes, which grows with what is in flight.
#[derive(Args)]
struct Arguments {
    /// Numbers of blocks.
    #[arg(long, value_delimiter = ',', default_values_t = [12, 24, 48])]
    blocks: Vec<usize>,
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 32])]
    micro_batches: Vec<usize>,
    /// Samples in a micro-batch.
    #[arg(long, default_value_t = 4)]
    samples: usize,
    /// Stages.
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Counted steps of each configuration; two more warm it up.
    #[arg(long, default_value_t = 5)]
    steps: usize,
}

/// The report.
#[derive(Serialize)]
struct Report {
    stages: usize,
    samples: usize,
    rows: Vec<Row>,
}

/// One size; times in seconds.
#[derive(Serialize)]
struct Row {
    blocks: usize,
    micro_batches: usize,
    one_f_one_b: Time,
    gpipe: Time,
}

fn main() -> Result<()> {
    let defaults = [("dim", "32"), ("heads", "2"), ("seq", "8")];
    let bench = Bench::<Arguments>::parse_with("tapes", &defaults);
    let mut rows = Vec::new();
    for &blocks in &bench.own.blocks {
        for &micro_batches in &bench.own.micro_batches {
            let step = |schedule: Box<dyn Schedule>| -> Result<Time> {
                let batch = bench.own.samples * micro_batches;
                let model = Model { layers: blocks, batch, ..bench.model };
                let builder = model.builder(bench.backend()?).stages(bench.own.stages);
                let builder = builder.micro_batches(micro_batches).schedule(schedule);
                let mut pipeline = builder.layer_costs(LayerCosts::Uniform).build()?;
                Ok(steps(&mut pipeline, model, bench.own.steps)?.time())
            };
            let one_f_one_b = step(Box::new(OneFOneB))?;
            let gpipe = step(Box::<GPipe>::default())?;
            rows.push(Row { blocks, micro_batches, one_f_one_b, gpipe });
        }
    }
    let header = [
        "blocks",
        "micro-batches",
        "1F1B",
        "GPipe",
        "GPipe / 1F1B",
        "1F1B, per block and micro-batch",
    ];
    let cells = rows.iter().map(|row| {
        let each = row.one_f_one_b.median / (row.blocks * row.micro_batches) as f64;
        [
            row.blocks.to_string(),
            row.micro_batches.to_string(),
            spread(row.one_f_one_b),
            spread(row.gpipe),
            format!("{:.2}", row.gpipe.median / row.one_f_one_b.median),
            seconds(each),
        ]
    });
    println!("{}", table(header, cells));
    bench.report(Report { stages: bench.own.stages, samples: bench.own.samples, rows })
}
