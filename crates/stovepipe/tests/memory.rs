//! A rank allocates what it is said to need.

use peak_alloc::PeakAlloc;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, Budget, ExceptLast, Never, SqrtLayers};
use stovepipe::schedule::{GPipe, OneFOneB, StageMemory};
use stovepipe::tune::Profile;
use stovepipe::{Builder, Profiling, Rehearsal};
use stovepipe_testkit::{CLASSES, DIM, LinearLayers, batch};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const LAYERS: usize = 10;
const WIDTH: usize = 16 * DIM;
const SAMPLES: usize = 64;

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
            down: LinearConfig::new(2 * WIDTH, WIDTH).init(device),
        }
    }
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        let hidden = gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(hidden)
    }
}

fn builder(staged: bool) -> Builder<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>> {
    let mut model = Sequential::<Tensor<2, Int>>::new().push_module(
        "embed",
        |d| EmbeddingConfig::new(CLASSES, WIDTH).init(d),
        |m, x| m.forward(x),
    );
    for layer in 0..LAYERS {
        model = model.push(format!("blocks.{layer}"), Block::new);
    }
    let model = model.linear("head", WIDTH, CLASSES);
    Pipeline::builder(model)
        .backend(Flex::new())
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-3)
        .atomic_updates(staged)
        .layer_costs(LayerCosts::Uniform)
        .loss(CrossEntropy)
}

/// The bytes that each rank is said to need.
fn predicted(profile: &Profile, builder: Setup, micro_batches: usize) -> Vec<u64> {
    let mut pipeline = builder().build().expect("builds");
    let program = pipeline.program(SAMPLES).expect("a program");
    let samples = SAMPLES / micro_batches;
    let stages: Vec<StageMemory> = pipeline
        .partition()
        .ranges()
        .map(|layers| profile.stage_memory(layers, samples).expect("known"))
        .collect();
    (0..program.plan().ranks()).map(|rank| program.peak_bytes(rank, &stages)).collect()
}

type MakePolicy<'a> = Box<dyn Fn() -> Box<dyn CheckpointPolicy> + 'a>;
type Setup<'a> = &'a dyn Fn() -> Builder<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

// One test: whatever ran beside it would be counted.
#[test]
fn ranks_need_what_is_predicted() {
    let mut report = Vec::new();
    for staged in [false, true] {
        let (x, y) = batch(SAMPLES, 0);
        let profiling = Profiling::new([1, 8, 64]).runs(1).warm_up(1).memory(PeakAlloc);
        let profile = builder(staged).profile(&profiling, x, y).expect("a profile");
        let budget = 3 * profile
            .activations(8)
            .expect("known")
            .iter()
            .map(|l| l.memory.activations)
            .sum::<u64>();
        let policies: [(&str, MakePolicy<'_>); 5] = [
            ("never", Box::new(|| Box::new(Never))),
            ("always", Box::new(|| Box::new(Always))),
            ("except-last", Box::new(|| Box::new(ExceptLast))),
            ("sqrt-layers", Box::new(|| Box::new(SqrtLayers))),
            (
                "budget",
                Box::new(|| Box::new(Budget::new(budget, profile.activations(8).expect("known")))),
            ),
        ];
        let schedules: [fn() -> Box<dyn Schedule>; 2] =
            [|| Box::new(GPipe::default()), || Box::new(OneFOneB)];
        for (name, policy) in &policies {
            for schedule in schedules {
                for (stages, micro_batches) in [(1, 8), (3, 8), (1, 1), (1, SAMPLES)] {
                    // What is said of one policy and schedule goes for the others; the budget is
                    // for micro-batches of eight samples.
                    if staged && *name != "sqrt-layers" || *name == "budget" && micro_batches != 8 {
                        continue;
                    }
                    // Of micro-batches this small, only what they leave behind when they shouldn't.
                    if micro_batches == SAMPLES && *name != "always" {
                        continue;
                    }
                    let setup = || {
                        builder(staged)
                            .stages(stages)
                            .micro_batches(micro_batches)
                            .schedule(schedule())
                            .checkpoint(policy())
                    };
                    let predicted = predicted(&profile, &setup, micro_batches);
                    for (rank, predicted) in predicted.into_iter().enumerate() {
                        let (x, y) = batch(SAMPLES, 0);
                        let found = setup()
                            .rehearse(&Rehearsal::new(rank, PeakAlloc), x, y)
                            .expect("rehearses");
                        let most = *found.iter().max().expect("steps");
                        let error = predicted as f64 / most as f64 - 1.0;
                        let what = format!(
                            "{name} {} staged {staged} K {stages} M {micro_batches} rank {rank}: \
                             predicted {predicted}, {found:?}, {:.1}%",
                            schedule().name(),
                            100.0 * error,
                        );
                        if error.abs() > 0.1 {
                            report.push(what);
                        }
                    }
                }
            }
        }
    }
    assert!(report.is_empty(), "{report:#?}");
}
