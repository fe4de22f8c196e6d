//! Small models with everything that can go wrong at a boundary.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;

use stovepipe::burn;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::activation::{gelu, softmax};
use stovepipe::burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use stovepipe::prelude::*;
use stovepipe::recompute::{
    Always, Budget, EveryLayers, ExceptLast, LayerActivations, Layout, Never, PolicyError,
    Selective, SqrtLayers,
};
use stovepipe::schedule::{Drain, GPipe, LayerMemory, OneFOneB, Retention, Stage};
use stovepipe::{Boundary, Builder};

pub(crate) const DIM: usize = 8;
pub(crate) const SEQ: usize = 5;
pub(crate) const CLASSES: usize = 11;

/// Token ids to embeddings.
#[derive(Module, Debug)]
pub(crate) struct Embed {
    embedding: Embedding,
}

impl Layer for Embed {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn forward(&self, ids: Tensor<2, Int>, _: &mut LayerContext<'_>) -> Tensor<3> {
        self.embedding.forward(ids)
    }
}

/// Uses its input four times: as query, key, value and residual.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
}

impl Attention {
    pub(crate) fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(DIM, DIM).init(device);
        Self {
            norm: LayerNormConfig::new(DIM).init(device),
            query: linear(),
            key: linear(),
            value: linear(),
        }
    }
}

impl Layer for Attention {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        let query = self.query.forward(self.norm.forward(x.clone()));
        let key = self.key.forward(x.clone());
        let value = self.value.forward(x.clone());
        // A view leaves the layer: swapped twice on the way.
        let scores = softmax(query.matmul(key.swap_dims(1, 2)), 2);
        (x + scores.matmul(value)).swap_dims(1, 2).swap_dims(1, 2)
    }
}

/// One tensor to two, of which the next layer uses one and ignores an integer one.
#[derive(Module, Debug)]
pub(crate) struct Fork {
    left: Linear,
    right: Linear,
}

impl Layer for Fork {
    type Input = Tensor<3>;
    type Output = (Tensor<3>, (Tensor<3>, Tensor<2, Int>));

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Self::Output {
        let [batch, seq, _] = x.dims();
        let ones = Tensor::<2, Int>::ones([batch, seq], &x.device());
        (self.left.forward(x.clone()), (self.right.forward(x), ones))
    }
}

/// Uses the first output of [`Fork`] and ignores the others.
#[derive(Module, Debug)]
pub(crate) struct Join {
    out: Linear,
}

impl Layer for Join {
    type Input = (Tensor<3>, (Tensor<3>, Tensor<2, Int>));
    type Output = Tensor<3>;

    fn forward(&self, (left, _): Self::Input, _: &mut LayerContext<'_>) -> Tensor<3> {
        self.out.forward(left)
    }
}

/// Seven layers: token ids, an input used four times, a tuple with unused parts, no parameters.
pub(crate) fn model() -> Sequential<Tensor<2, Int>, Tensor<3>> {
    Sequential::<Tensor<2, Int>>::new()
        .push("embed", |d| Embed { embedding: EmbeddingConfig::new(CLASSES, DIM).init(d) })
        .push("attention", Attention::new)
        .push("fork", |d| Fork {
            left: LinearConfig::new(DIM, DIM).init(d),
            right: LinearConfig::new(DIM, DIM).init(d),
        })
        .push("join", |d| Join { out: LinearConfig::new(DIM, DIM).init(d) })
        .push_fn("gelu", |x: Tensor<3>| gelu(x))
        .push_module("norm", |d| LayerNormConfig::new(DIM).init(d), |m, x: Tensor<3>| m.forward(x))
        .push_module(
            "head",
            |d| LinearConfig::new(DIM, CLASSES).init(d),
            |m, x: Tensor<3>| m.forward(x),
        )
}

pub(crate) type Toy = Pipeline<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

/// How a pipeline is set up.
pub(crate) struct Setup {
    pub(crate) stages: usize,
    pub(crate) stages_per_rank: usize,
    pub(crate) micro_batches: usize,
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) policy: Box<dyn CheckpointPolicy>,
    pub(crate) threads: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            stages: 1,
            stages_per_rank: 1,
            micro_batches: 1,
            schedule: Box::new(GPipe::default()),
            policy: Box::new(Never),
            threads: 1,
        }
    }
}

pub(crate) fn build(setup: Setup) -> Toy {
    Pipeline::builder(model())
        .backend(Flex::new().threads(setup.threads))
        .stages(setup.stages)
        .stages_per_rank(setup.stages_per_rank)
        .micro_batches(setup.micro_batches)
        .schedule(setup.schedule)
        .checkpoint(setup.policy)
        .layer_costs(LayerCosts::Uniform)
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-2)
        .loss(CrossEntropy)
        .seed(7)
        .build()
        .expect("a pipeline")
}

/// Token ids and targets, different for each `step`.
pub(crate) fn batch(samples: usize, step: usize) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let tensor = |factor: usize| {
        let ids: Vec<i32> = (0..samples * SEQ)
            .map(|i| ((i * factor + step * 3 + i / 7) % CLASSES) as i32)
            .collect();
        Tensor::from_data(TensorData::new(ids, [samples, SEQ]), &Device::flex())
    };
    (tensor(5), tensor(3))
}

/// The bytes of every tensor: equal only if every bit is.
pub(crate) fn bits(tensors: &BTreeMap<String, TensorData>) -> BTreeMap<String, Vec<u8>> {
    tensors.iter().map(|(name, data)| (name.clone(), data.as_bytes().to_vec())).collect()
}

/// The norm of the difference of two whole gradients, divided by that of the second.
pub(crate) fn relative_difference(
    a: &BTreeMap<String, TensorData>,
    b: &BTreeMap<String, TensorData>,
) -> f64 {
    assert!(a.keys().eq(b.keys()), "{:?} and {:?}", a.keys(), b.keys());
    let flat = |tensors: &BTreeMap<String, TensorData>| -> Vec<f64> {
        tensors.values().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()).collect()
    };
    let (a, b) = (flat(a), flat(b));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Random floats of this shape.
pub(crate) fn floats<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, &Device::flex())
}

/// A budget of half of what all layers of the fullest stage keep, were they all the same.
struct HalfBudget;

impl CheckpointPolicy for HalfBudget {
    fn name(&self) -> &str {
        "half-budget"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let layers = Stage::first(layout.plan().stages()).map(|stage| layout.layers(stage));
        let layers: Vec<usize> = layers.collect();
        let in_flight = layout.plan().stage_activations();
        let kept = layers.iter().zip(in_flight).map(|(layers, m)| 10 * (layers * m) as u64);
        let memory = LayerMemory { activations: 10, input: 1, ..Default::default() };
        let one = LayerActivations { memory, recompute: 1.0 };
        // At least what rebuilding everything from the first input needs.
        let least = layers.iter().map(|layers| 10 * *layers as u64 + 3).max().unwrap_or(0);
        let budget = (kept.max().unwrap_or(0) / 2).max(least);
        Budget::new(budget, vec![one; layers.iter().sum()]).retention(layout)
    }
}

pub(crate) type Bits = BTreeMap<String, Vec<u8>>;
pub(crate) type Tokens = Tensor<2, Int>;

/// Builds, runs and reads a pipeline on 1 to 4 stages, with each schedule and policy, and checks that all
/// give what one stage gives. Schedules of one order of accumulation are compared.
pub(crate) fn is_the_same_on_any_number_of_stages<T, R>(
    builder: impl Fn() -> Builder<Tokens, Tensor<3>, T>,
    run: impl Fn(Pipeline<Tokens, Tensor<3>, T>) -> R,
) -> R
where
    T: Boundary,
    R: PartialEq,
{
    let schedules: [fn() -> Box<dyn Schedule>; 2] =
        [|| Box::new(OneFOneB), || Box::new(GPipe::new(Drain::Forward))];
    let policies: [fn() -> Box<dyn CheckpointPolicy>; 7] = [
        || Box::new(Never),
        || Box::new(Always),
        || Box::new(ExceptLast),
        || Box::new(EveryLayers::new(1)),
        || Box::new(SqrtLayers),
        || Box::new(Selective::new([1, 2])),
        || Box::new(HalfBudget),
    ];
    let mut expected = None;
    for schedule in schedules {
        for policy in policies {
            for stages in 1..=4 {
                let pipeline = builder()
                    .backend(Flex::new())
                    .stages(stages)
                    .micro_batches(3)
                    .schedule(schedule())
                    .checkpoint(policy())
                    .layer_costs(LayerCosts::Uniform)
                    .seed(11)
                    .build()
                    .expect("a pipeline");
                let found = run(pipeline);
                let what = format!("{} {} {stages}", schedule().name(), policy().name());
                assert!(*expected.get_or_insert_with(|| run(one(&builder))) == found, "{what}");
            }
        }
    }
    expected.expect("there was a run")
}

pub(crate) fn one<T: Boundary>(
    builder: &impl Fn() -> Builder<Tokens, Tensor<3>, T>,
) -> Pipeline<Tokens, Tensor<3>, T> {
    builder()
        .backend(Flex::new())
        .micro_batches(3)
        .schedule(OneFOneB)
        .seed(11)
        .build()
        .expect("a pipeline")
}

/// Losses of three steps and the parameters after them.
pub(crate) fn train(mut pipeline: Pipeline<Tokens, Tensor<3>, Tokens>) -> (Vec<f64>, Bits) {
    let losses = (0..3).map(|step| {
        let (x, y) = batch(7, step);
        pipeline.step(x, y).expect("a step").loss
    });
    let losses = losses.collect();
    (losses, bits(&pipeline.parameters().expect("parameters")))
}

pub(crate) fn adam<T>(builder: Builder<Tokens, Tensor<3>, T>) -> Builder<Tokens, Tensor<3>, T> {
    builder.optimizer(AdamConfig::new().init()).learning_rate(1e-2)
}
