//! What ranks allocate under each checkpoint policy, next to what is predicted of them from measured layers;
//! how the peak follows stages and micro-batches; and how large a model fits into a limit.
//! `cargo xtask bench memory --backend flex` runs it.

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use clap::{CommandFactory, FromArgMatches, Parser};
use comfy_table::Table;
use peak_alloc::PeakAlloc;
use serde::Serialize;
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::Tensor;
use stovepipe::partition::{Costs, Uniform};
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, Budget, Layout, Never, SqrtLayers};
use stovepipe::schedule::{Edges, GPipe, OneFOneB, Program, Shape, StageMemory};
use stovepipe::tune::{LayerProfile, Profile};
use stovepipe::{Builder, Profiling, Rehearsal};
use stovepipe_benches::report::Destination;
use stovepipe_benches::{Machine, Model, On};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Counts what each rank of a pipeline allocates at most in a step, alone on recorded inputs, with Adam.
#[derive(Parser)]
struct Arguments {
    /// Numbers of stages, one on each rank.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    stages: Vec<usize>,
    /// Numbers of micro-batches.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    micro_batches: Vec<usize>,
    /// What a rank may hold where the largest model is looked for.
    #[arg(long, default_value = "256MiB")]
    limit: ByteSize,
    /// Only `flex`, whose bytes the program's allocator counts.
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    destination: Destination,
}

/// The whole report; all sizes in bytes.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    model: Model,
    policies: Vec<Peak>,
    always: Vec<Peak>,
    limit: u64,
    largest: Vec<Largest>,
}

/// The most that a rank holds.
#[derive(Serialize)]
struct Peak {
    schedule: String,
    policy: String,
    stages: usize,
    micro_batches: usize,
    rank: usize,
    predicted: u64,
    measured: u64,
    /// Of it, beyond parameters, gradients, optimizer state and the threads' own.
    activations: u64,
}

impl Peak {
    fn error(&self) -> f64 {
        self.predicted as f64 / self.measured as f64 - 1.0
    }
}

/// The largest model within the limit.
#[derive(Serialize)]
struct Largest {
    policy: String,
    stages: usize,
    micro_batches: usize,
    layers: usize,
    parameters: usize,
    predicted: u64,
    measured: u64,
}

type Floats = Builder<Tensor<3>, Tensor<3>, Tensor<3>>;

/// What is measured with.
struct Bench {
    model: Model,
    profile: Profile,
}

/// How ranks run.
#[derive(Clone, Copy)]
struct Setting<'a> {
    model: Model,
    stages: usize,
    micro_batches: usize,
    schedule: fn() -> Box<dyn Schedule>,
    policy: &'a dyn Fn() -> Box<dyn CheckpointPolicy>,
}

const GPIPE: fn() -> Box<dyn Schedule> = || Box::new(GPipe::default());
const ONE_F_ONE_B: fn() -> Box<dyn Schedule> = || Box::new(OneFOneB);

fn builder(model: Model) -> Floats {
    model.builder(Flex::new()).optimizer(AdamConfig::new().init()).layer_costs(LayerCosts::Uniform)
}

impl Setting<'_> {
    fn builder(&self) -> Floats {
        builder(self.model)
            .stages(self.stages)
            .micro_batches(self.micro_batches)
            .schedule((self.schedule)())
            .checkpoint((self.policy)())
    }
}

impl Bench {
    fn new(model: Model) -> Result<Self> {
        let sizes: Vec<usize> = std::iter::successors(Some(1), |size| Some(2 * size))
            .take_while(|&size| size < model.batch)
            .chain([model.batch])
            .collect();
        let profiling = Profiling::new(sizes).runs(1).warm_up(1).together(2).memory(PeakAlloc);
        let (x, y) = model.batch();
        let profile = builder(model).profile(&profiling, x, y)?;
        Ok(Self { model, profile })
    }

    /// The profile of a model with another number of the same layers.
    fn profile_of(&self, layers: usize) -> Result<Profile> {
        let measured = self.profile.layers();
        let inner = |place: usize| match place {
            0 => &measured[0],
            last if last + 1 == layers => &measured[measured.len() - 1],
            _ => &measured[measured.len() / 2],
        };
        let named =
            |place: usize| LayerProfile { name: format!("blocks.{place}"), ..inner(place).clone() };
        let profile = Profile::new("grown", (0..layers).map(named).collect::<Vec<_>>())?;
        Ok(profile.with_workspace(self.profile.workspace()))
    }

    /// The most that each rank will hold, and how much of it isn't activations.
    fn predict(&self, setting: Setting<'_>) -> Result<Vec<(u64, u64)>> {
        let Setting { model, stages, micro_batches, .. } = setting;
        let profile = self.profile_of(model.layers)?;
        let partition = Uniform.partition(&Costs::uniform(model.layers)?, stages)?;
        let memory: Vec<StageMemory> = partition
            .ranges()
            .map(|layers| profile.stage_memory(layers, model.batch.div_ceil(micro_batches)))
            .collect::<Result<_, _>>()?;
        let plan = (setting.schedule)().plan(Shape::new(stages, micro_batches))?;
        let sizes = partition.sizes();
        let layout = Layout::new(&plan, &sizes)?;
        let retention = (setting.policy)().retention(layout)?.with_recomputed(&plan, &sizes);
        let edges = Edges::chain(stages);
        let program = Program::lower(&plan, &edges, &retention)?;
        let of = |rank: usize| {
            let stage = &memory[plan.stages_of(rank)[0].index()];
            let gradients: u64 = stage.layers.iter().map(|layer| layer.gradients).sum();
            (program.peak_bytes(rank, &memory), stage.fixed + stage.workspace + gradients)
        };
        Ok((0..stages).map(of).collect())
    }

    /// The most that a rank holds in the second of two steps, when the optimizer has its state.
    fn measure(&self, setting: Setting<'_>, rank: usize) -> Result<u64> {
        let (x, y) = setting.model.batch();
        let peaks = setting.builder().rehearse(&Rehearsal::new(rank, PeakAlloc), x, y)?;
        peaks.last().copied().context("there was no step")
    }

    /// Every rank, predicted and measured.
    fn peaks(&self, setting: Setting<'_>) -> Result<Vec<Peak>> {
        let predicted = self.predict(setting)?.into_iter().enumerate();
        predicted.map(|(rank, bytes)| self.peak(setting, rank, bytes)).collect()
    }

    /// The rank that holds most, as is predicted.
    fn fullest(&self, setting: Setting<'_>) -> Result<Option<Peak>> {
        let predicted = self.predict(setting)?.into_iter().enumerate();
        let fullest = predicted.max_by_key(|(_, (bytes, _))| *bytes);
        fullest.map(|(rank, bytes)| self.peak(setting, rank, bytes)).transpose()
    }

    fn peak(
        &self,
        setting: Setting<'_>,
        rank: usize,
        (predicted, other): (u64, u64),
    ) -> Result<Peak> {
        let measured = self.measure(setting, rank)?;
        Ok(Peak {
            schedule: (setting.schedule)().name().to_owned(),
            policy: (setting.policy)().name().to_owned(),
            stages: setting.stages,
            micro_batches: setting.micro_batches,
            rank,
            predicted,
            measured,
            activations: measured.saturating_sub(other),
        })
    }

    /// The most layers with which every rank keeps to the limit.
    fn most_layers(&self, setting: Setting<'_>, limit: u64) -> Result<usize> {
        let fits = |layers: usize| -> Result<bool> {
            let model = Model { layers, ..setting.model };
            let needed = self.predict(Setting { model, ..setting })?;
            Ok(needed.iter().all(|(bytes, _)| *bytes <= limit))
        };
        let (mut most, mut too_many) = (0, setting.stages.max(2));
        while fits(too_many)? {
            (most, too_many) = (too_many, 2 * too_many);
        }
        while too_many - most > 1 {
            let middle = usize::midpoint(most, too_many);
            if middle >= setting.stages && fits(middle)? {
                most = middle;
            } else {
                too_many = middle;
            }
        }
        Ok(most)
    }

    /// The largest model whose fullest rank really keeps to the limit, not only as is predicted.
    fn largest(&self, setting: Setting<'_>, limit: u64) -> Result<Option<Largest>> {
        let mut layers = self.most_layers(setting, limit)?;
        while layers >= setting.stages {
            let setting = Setting { model: Model { layers, ..setting.model }, ..setting };
            let peak = self.fullest(setting)?.context("no rank")?;
            if peak.measured > limit {
                // No layer needs more than its share of what is needed, so none that fits is left out.
                let share = layers as f64 * limit as f64 / peak.measured as f64;
                layers = (share as usize).min(layers - 1);
                continue;
            }
            let of_layer = self.profile.layers()[0].parameter_bytes as usize / size_of::<f32>();
            return Ok(Some(Largest {
                policy: peak.policy,
                stages: peak.stages,
                micro_batches: peak.micro_batches,
                layers,
                parameters: layers * of_layer,
                predicted: peak.predicted,
                measured: peak.measured,
            }));
        }
        Ok(None)
    }
}

fn main() -> Result<()> {
    let matches = Arguments::command().mut_arg("layers", |layers| layers.default_value("24"));
    let matches = matches.mut_arg("dim", |dim| dim.default_value("128")).get_matches();
    let arguments = Arguments::from_arg_matches(&matches)?;
    ensure!(
        arguments.on.name == "flex",
        "only the processor's memory can be counted: measure with `--backend flex`"
    );
    let bench = Bench::new(arguments.model)?;
    let policies = by_policy(&bench, &arguments)?;
    print_policies(&policies);
    let always = by_shape(&bench, &arguments)?;
    print_shapes(&bench, &always, &arguments);
    let largest = by_limit(&bench, &arguments)?;
    print_largest(&largest, arguments.limit);
    let report = Report {
        machine: arguments.on.machine()?,
        model: arguments.model,
        policies,
        always,
        limit: arguments.limit.as_u64(),
        largest,
    };
    arguments.destination.write("memory", &report)
}

/// Every policy, on up to four stages.
fn by_policy(bench: &Bench, arguments: &Arguments) -> Result<Vec<Peak>> {
    const MICRO_BATCHES: usize = 8;
    let samples = bench.model.batch.div_ceil(MICRO_BATCHES);
    let layers = bench.profile.activations(samples)?;
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
                let model = bench.model;
                let setting =
                    Setting { model, stages, micro_batches: MICRO_BATCHES, schedule, policy };
                peaks.extend(bench.peaks(setting)?);
            }
        }
    }
    Ok(peaks)
}

fn print_policies(peaks: &[Peak]) {
    let mut table = Table::new();
    table.set_header([
        "recomputation",
        "schedule",
        "stages",
        "rank",
        "measured",
        "predicted",
        "error",
    ]);
    for peak in peaks {
        table.add_row([
            peak.policy.clone(),
            peak.schedule.clone(),
            peak.stages.to_string(),
            peak.rank.to_string(),
            mebibytes(peak.measured),
            mebibytes(peak.predicted),
            format!("{:+.1}%", 100.0 * peak.error()),
        ]);
    }
    let worst = peaks.iter().map(|peak| peak.error().abs()).fold(0.0, f64::max);
    println!("eight micro-batches\n{table}\nworst error: {:.1}%\n", 100.0 * worst);
}

/// `Always` over stages and micro-batches: the rank that holds most.
fn by_shape(bench: &Bench, arguments: &Arguments) -> Result<Vec<Peak>> {
    let mut peaks = Vec::new();
    for &stages in &arguments.stages {
        for &micro_batches in arguments.micro_batches.iter().filter(|m| **m <= bench.model.batch) {
            let policy = &|| -> Box<dyn CheckpointPolicy> { Box::new(Always) };
            let model = bench.model;
            let setting = Setting { model, stages, micro_batches, schedule: GPIPE, policy };
            peaks.extend(bench.fullest(setting)?);
        }
    }
    Ok(peaks)
}

fn print_shapes(bench: &Bench, peaks: &[Peak], arguments: &Arguments) {
    let layer = &bench.profile.layers()[bench.model.layers / 2];
    let Some(of_batch) = layer.measurements.last() else { return };
    let kept = of_batch.memory.map_or(0, |memory| memory.activations) as f64;
    let input = of_batch.input_bytes as f64;
    let mut table = Table::new();
    let header = arguments.micro_batches.iter().map(|m| format!("M = {m}"));
    table.set_header(std::iter::once("stages".to_owned()).chain(header));
    for &stages in &arguments.stages {
        let row = peaks.iter().filter(|peak| peak.stages == stages).map(|peak| {
            // The inputs of all micro-batches, and all layers of one.
            let per_stage = bench.model.layers as f64 / stages as f64;
            let inputs = if stages == 1 { 0.0 } else { input };
            let formula = inputs + per_stage * kept / peak.micro_batches as f64;
            format!(
                "{} {} ({})",
                mebibytes(peak.measured),
                mebibytes(peak.activations),
                mebibytes(formula as u64)
            )
        });
        table.add_row(std::iter::once(stages.to_string()).chain(row));
    }
    println!(
        "recomputing always, the rank that holds most: all of it; activations; in parentheses \
         N + (L / K)(N / M), from the input and the activations of one layer. With one stage N is the \
         mini-batch itself, which isn't counted.\n{table}\n"
    );
}

/// What fits into the limit.
fn by_limit(bench: &Bench, arguments: &Arguments) -> Result<Vec<Largest>> {
    let limit = arguments.limit.as_u64();
    let never = &|| -> Box<dyn CheckpointPolicy> { Box::new(Never) };
    let always = &|| -> Box<dyn CheckpointPolicy> { Box::new(Always) };
    let model = bench.model;
    let plain = Setting { model, stages: 1, micro_batches: 1, schedule: GPIPE, policy: never };
    let mut found: Vec<Largest> = bench.largest(plain, limit)?.into_iter().collect();
    for &stages in &arguments.stages {
        let mut best: Option<(usize, usize)> = None;
        for &micro_batches in arguments.micro_batches.iter().filter(|m| **m <= model.batch) {
            let setting = Setting { stages, micro_batches, policy: always, ..plain };
            let layers = bench.most_layers(setting, limit)?;
            if best.is_none_or(|(most, _)| layers > most) {
                best = Some((layers, micro_batches));
            }
        }
        if let Some((_, micro_batches)) = best {
            let setting = Setting { stages, micro_batches, policy: always, ..plain };
            found.extend(bench.largest(setting, limit)?);
        }
    }
    Ok(found)
}

fn print_largest(found: &[Largest], limit: ByteSize) {
    let mut table = Table::new();
    table.set_header([
        "recomputation",
        "stages",
        "micro-batches",
        "layers",
        "parameters",
        "times",
        "predicted",
        "measured",
    ]);
    let least = found.first().map_or(1, |first| first.parameters);
    for largest in found {
        table.add_row([
            largest.policy.clone(),
            largest.stages.to_string(),
            largest.micro_batches.to_string(),
            largest.layers.to_string(),
            format!("{:.1} M", largest.parameters as f64 / 1e6),
            format!("{:.1}", largest.parameters as f64 / least as f64),
            mebibytes(largest.predicted),
            mebibytes(largest.measured),
        ]);
    }
    println!("the largest model with {limit} on each rank\n{table}");
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
