//! The bytes that ranks allocate under each checkpoint policy, next to what is predicted of them
//! from measured layers; how the peak follows stages and micro-batches; and how large a model fits
//! into a limit. `cargo xtask bench memory --backend flex` runs it.

mod largest;
mod rehearsals;

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use clap::Args;
use largest::Largest;
use peak_alloc::PeakAlloc;
use rehearsals::{GPIPE, ONE_F_ONE_B, Peak, Rehearsals, Setting};
use serde::Serialize;
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, Budget, Never, SqrtLayers};
use stovepipe_benches::{Bench, deviation, mebibytes, table};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Counts what each rank of a pipeline allocates at most in a step, alone on recorded inputs, with
/// Adam.
///
/// Only on `flex`, whose bytes the program's allocator counts.
#[derive(Args)]
struct Arguments {
    /// Numbers of stages, one on each rank.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    stages: Vec<usize>,
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    micro_batches: Vec<usize>,
    /// The most that a rank may hold where the largest model is looked for.
    #[arg(long, default_value = "256MiB")]
    limit: ByteSize,
}

/// The report; all sizes in bytes.
#[derive(Serialize)]
struct Report {
    policies: Vec<Peak>,
    always: Vec<Peak>,
    limit: u64,
    largest: Vec<Largest>,
}

fn main() -> Result<()> {
    let bench = Bench::<Arguments>::parse_with("memory", &[("layers", "24"), ("dim", "128")]);
    ensure!(
        bench.on.name == "flex",
        "only the processor's memory can be counted: measure with `--backend flex`"
    );
    let (arguments, rehearsals) = (&bench.own, Rehearsals::new(bench.model)?);
    let policies = by_policy(&rehearsals, arguments)?;
    print_policies(&policies);
    let always = by_shape(&rehearsals, arguments)?;
    print_shapes(&rehearsals, &always, arguments);
    let limit = arguments.limit.as_u64();
    let largest =
        largest::by_limit(&rehearsals, &arguments.stages, &arguments.micro_batches, limit)?;
    largest::print(&largest, arguments.limit);
    bench.report(Report { policies, always, limit, largest })
}

/// Every policy, on up to four stages.
fn by_policy(rehearsals: &Rehearsals, arguments: &Arguments) -> Result<Vec<Peak>> {
    const MICRO_BATCHES: usize = 8;
    let samples = rehearsals.model.batch.div_ceil(MICRO_BATCHES);
    let layers = rehearsals.profile.activations(samples)?;
    let mut peaks = Vec::new();
    for &stages in arguments.stages.iter().filter(|stages| **stages <= 4) {
        // Room for three of the eight micro-batches.
        let room =
            3 * layers.iter().map(|layer| layer.memory.activations).sum::<u64>() / stages as u64;
        let budget = || Budget::new(room, layers.clone());
        let policies: [&dyn Fn() -> Box<dyn CheckpointPolicy>; 4] =
            [&|| Box::new(Never), &|| Box::new(Always), &|| Box::new(SqrtLayers), &|| {
                Box::new(budget())
            }];
        for policy in policies {
            for schedule in [GPIPE, ONE_F_ONE_B] {
                let model = rehearsals.model;
                let setting =
                    Setting { model, stages, micro_batches: MICRO_BATCHES, schedule, policy };
                peaks.extend(rehearsals.peaks(setting)?);
            }
        }
    }
    Ok(peaks)
}

fn print_policies(peaks: &[Peak]) {
    let header = ["recomputation", "schedule", "stages", "rank", "measured", "predicted", "error"];
    let rows = peaks.iter().map(|peak| {
        [
            peak.policy.clone(),
            peak.schedule.clone(),
            peak.stages.to_string(),
            peak.rank.to_string(),
            mebibytes(peak.measured),
            mebibytes(peak.predicted),
            deviation(peak.ratio()),
        ]
    });
    let worst = peaks.iter().map(|peak| (peak.ratio() - 1.0).abs()).fold(0.0, f64::max);
    let table = table(header, rows);
    println!("eight micro-batches\n{table}\nworst error: {:.1}%\n", 100.0 * worst);
}

/// `Always` over stages and micro-batches: the rank that holds most.
fn by_shape(rehearsals: &Rehearsals, arguments: &Arguments) -> Result<Vec<Peak>> {
    let mut peaks = Vec::new();
    for &stages in &arguments.stages {
        for &micro_batches in
            arguments.micro_batches.iter().filter(|m| **m <= rehearsals.model.batch)
        {
            let policy = &|| -> Box<dyn CheckpointPolicy> { Box::new(Always) };
            let model = rehearsals.model;
            let setting = Setting { model, stages, micro_batches, schedule: GPIPE, policy };
            peaks.extend(rehearsals.fullest(setting)?);
        }
    }
    Ok(peaks)
}

fn print_shapes(rehearsals: &Rehearsals, peaks: &[Peak], arguments: &Arguments) {
    let layer = &rehearsals.profile.layers()[rehearsals.model.layers / 2];
    let Some(of_batch) = layer.measurements.last() else { return };
    let kept = of_batch.memory.map_or(0, |memory| memory.activations) as f64;
    let input = of_batch.input_bytes as f64;
    let header = arguments.micro_batches.iter().map(|m| format!("M = {m}"));
    let header = std::iter::once("stages".to_owned()).chain(header);
    let rows = arguments.stages.iter().map(|&stages| {
        let row = peaks.iter().filter(|peak| peak.stages == stages).map(|peak| {
            // The inputs of all micro-batches, and all layers of one.
            let per_stage = rehearsals.model.layers as f64 / stages as f64;
            let inputs = if stages == 1 { 0.0 } else { input };
            let formula = inputs + per_stage * kept / peak.micro_batches as f64;
            format!(
                "{} {} ({})",
                mebibytes(peak.measured),
                mebibytes(peak.activations),
                mebibytes(formula as u64)
            )
        });
        std::iter::once(stages.to_string()).chain(row).collect::<Vec<_>>()
    });
    println!(
        "recomputing always, the rank that holds most: all of it; activations; in parentheses \
         N + (L / K)(N / M), from the input and the activations of one layer. With one stage N is the \
         mini-batch itself, which isn't counted.\n{}\n",
        table(header, rows)
    );
}
