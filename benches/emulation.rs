//! Emulated pipelines next to the simulator: what the executor and its threads take.
//! `cargo bench --bench emulation` runs it.

use anyhow::Result;
use clap::Parser;
use stovepipe_benches::table;
use stovepipe_emulate::Emulation;
use stovepipe_schedule::{
    CostModel, Edges, GPipe, OneFOneB, Program, Retention, Schedule, Shape, ZbH1, simulate,
};

/// Runs stages that wait instead of computing on the real executor, many ranks on few cores.
///
/// First with actions that take a while, next to the simulated step. Then with empty actions, which
/// are the executor's own time.
#[derive(Parser)]
struct Arguments {
    /// Ranks whose actions take a while.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8])]
    ranks: Vec<usize>,
    /// Micro-batches.
    #[arg(long, default_value_t = 32)]
    micro_batches: usize,
    /// Milliseconds of a forward; a backward takes as long.
    #[arg(long, default_value_t = 5.0)]
    milliseconds: f64,
    /// Bytes of a value between stages.
    #[arg(long, default_value_t = 1 << 16)]
    bytes: usize,
    /// Steps of each row, of which the median counts.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Taken because `cargo bench` gives it.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let seconds = arguments.milliseconds * 1e-3;
    let schedules: [fn() -> Box<dyn Schedule>; 3] =
        [|| Box::<GPipe>::default(), || Box::new(OneFOneB), || Box::new(ZbH1)];
    let mut rows = Vec::new();
    for &ranks in &arguments.ranks {
        for schedule in schedules {
            let program = program(&*schedule(), ranks, arguments.micro_batches)?;
            let costs = CostModel::uniform(ranks, seconds, seconds);
            let simulated = simulate(&program, &costs)?.makespan();
            let emulated = median(&program, &costs, arguments.bytes, arguments.steps)?;
            rows.push([
                schedule().name().to_owned(),
                ranks.to_string(),
                format!("{:.1} ms", 1e3 * simulated),
                format!("{:.1} ms", 1e3 * emulated),
                format!("{:.3}", emulated / simulated),
            ]);
        }
    }
    println!("{}", table(["schedule", "ranks", "simulated", "emulated", "ratio"], rows));

    let mut rows = Vec::new();
    for (ranks, micro_batches) in [(2, 512), (8, 512), (64, 512)] {
        let program = program(&OneFOneB, ranks, micro_batches)?;
        let actions = 2 * ranks * micro_batches;
        let costs = CostModel::uniform(ranks, 0.0, 0.0);
        let step = median(&program, &costs, arguments.bytes.min(16), arguments.steps)?;
        rows.push([
            ranks.to_string(),
            micro_batches.to_string(),
            format!("{:.1} ms", 1e3 * step),
            format!("{:.0}", actions as f64 / step),
            format!("{:.2} µs", 1e6 * step / actions as f64),
        ]);
    }
    let header = ["ranks", "micro-batches", "step", "empty actions in a second", "each"];
    println!("{}", table(header, rows));
    Ok(())
}

fn program(schedule: &dyn Schedule, ranks: usize, micro_batches: usize) -> Result<Program> {
    let plan = schedule.plan(Shape::new(ranks, micro_batches))?;
    Ok(Program::lower(&plan, &Edges::chain(plan.stages()), &Retention::keep_all(&plan))?)
}

/// The median step in seconds, after one that warms up.
fn median(program: &Program, costs: &CostModel, bytes: usize, steps: usize) -> Result<f64> {
    let mut emulation = Emulation::start(program, costs, bytes)?;
    emulation.step()?;
    let mut seconds = Vec::with_capacity(steps);
    for _ in 0..steps.max(1) {
        seconds.push(emulation.step()?.makespan());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}
