//! Real sizes and long recurrences change no bit; a rank without a worker is named.

use stovepipe::burn::module::{Module, Param};
use stovepipe::burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use stovepipe::burn::nn::{
    EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use stovepipe::burn::optim::{AdamConfig, SgdConfig};
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::schedule::GPipe;
use stovepipe::{BackendError, Boundary, Builder, Loss, LossSum, RankThread};
use stovepipe_testkit::{LinearLayers, floats, parameter_bits};

/// Flex divides a sum over a weight of this width among its threads.
const WIDTH: usize = 2304;

/// The numbers of stages and of threads for each rank that are compared.
const RUNS: [(usize, usize); 7] = [(1, 1), (1, 2), (1, 3), (1, 8), (2, 1), (2, 2), (2, 8)];

/// Multiplies by a square weight.
#[derive(Module, Debug)]
struct Square {
    weight: Param<Tensor<2>>,
}

impl Square {
    fn new(device: &Device) -> Self {
        let uniform = Initializer::Uniform { min: -0.02, max: 0.02 };
        Self { weight: uniform.init([WIDTH, WIDTH], device) }
    }
}

impl Layer for Square {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
        x.matmul(self.weight.val())
    }
}

fn sgd<T: Boundary>(
    builder: Builder<Tensor<2>, Tensor<2>, T>,
    (stages, threads): (usize, usize),
) -> Builder<Tensor<2>, Tensor<2>, T> {
    builder
        .backend(Flex::new().threads(threads))
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .stages(stages)
        .layer_costs(LayerCosts::Uniform)
        .seed(7)
}

#[test]
fn norms_of_large_weights_are_the_same_bits_for_any_number_of_threads() {
    let (x, y) = (floats([4, WIDTH]), floats([4, WIDTH]));
    for is_tied in [false, true] {
        let run = |run| {
            let mut model =
                Sequential::<Tensor<2>>::new().push("a", Square::new).push("b", Square::new);
            if is_tied {
                model = model.tie(["a.weight", "b.weight"]);
            }
            let builder = Pipeline::builder(model).loss(MeanSquaredError).micro_batches(2);
            let builder = builder.clip_gradients(Clipping::Norm(1e-3));
            let mut pipeline = sgd(builder, run).build().expect("a pipeline");
            let step = pipeline.step(x.clone(), y.clone()).expect("a step");
            let norm = step.gradient_norm.expect("it is measured");
            assert!(norm > 1e-3, "{norm} is clipped");
            (step.loss.to_bits(), norm.to_bits(), parameter_bits(&mut pipeline))
        };
        let expected = run(RUNS[0]);
        for other in &RUNS[1..] {
            assert!(run(*other) == expected, "stages and threads {other:?}, tied {is_tied}");
        }
    }
}

/// The bits of the loss of a mini-batch with millions of elements, with these numbers of stages and
/// threads.
fn losses<T: Boundary + Clone>(loss: impl Loss<Tensor<2>, T> + Copy, target: &T) -> Vec<u64> {
    let x = Tensor::<2>::ones([2048, 1], &Device::flex()) * 0.3;
    let run = |run| {
        let model = Sequential::<Tensor<2>>::new().linear("a", 1, 1).linear("b", 1, WIDTH);
        let builder = Pipeline::builder(model).loss(loss).micro_batches(1);
        let mut pipeline = sgd(builder, run).build().expect("a pipeline");
        let step = pipeline.step(x.clone(), target.clone()).expect("a step").loss;
        let after = pipeline.evaluate(x.clone(), target.clone()).expect("a loss").loss;
        assert!(after < step, "{after} after {step}");
        [step.to_bits(), after.to_bits()]
    };
    RUNS.into_iter().flat_map(run).collect()
}

#[test]
fn losses_over_millions_of_elements_are_the_same_bits_for_any_number_of_threads() {
    let values = floats([2048, WIDTH]);
    let same = |found: Vec<u64>| {
        assert!(found.chunks(2).all(|run| run == &found[..2]), "{found:?}");
    };
    same(losses(MeanSquaredError, &values));
    let weights = floats([2048]);
    same(losses(MeanSquaredError.weighted(), &(values.clone(), weights)));
    let absolute = |output: Tensor<2>, target: Tensor<2>| {
        let elements = target.shape().num_elements() as f64;
        LossSum::of_terms((output - target).abs(), elements)
    };
    same(losses(absolute, &values));
}

/// A block of a transformer, as wide as a small one.
#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    up: Linear,
    down: Linear,
}

const DIM: usize = 256;
const VOCABULARY: usize = 4096;

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(DIM).init(device),
            attention: MultiHeadAttentionConfig::new(DIM, 4).with_dropout(0.0).init(device),
            up: LinearConfig::new(DIM, 4 * DIM).init(device),
            down: LinearConfig::new(4 * DIM, DIM).init(device),
        }
    }
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let normed = self.norm.forward(x.clone());
        let x = x + self.attention.forward(MhaInput::self_attn(normed)).context;
        let hidden = context.dropout(gelu(self.up.forward(x.clone())), 0.1);
        x + self.down.forward(hidden)
    }
}

/// Logits by the vectors of the embedding.
#[derive(Module, Debug)]
struct Head {
    weight: Param<Tensor<2>>,
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        x.matmul(self.weight.val().transpose().unsqueeze())
    }
}

#[test]
fn training_at_real_widths_gives_the_same_bits_for_any_number_of_threads() {
    // 1,024 tokens in a micro-batch: activations of 256 Ki elements, logits of 4 Mi.
    let ids = |shift: i64| {
        let ids = Tensor::<1, Int>::arange(0..2048, &Device::flex());
        (ids * 37 + shift).remainder_scalar(VOCABULARY as i64).reshape([64, 32])
    };
    let run = |(stages, threads)| {
        let embedding = |d: &Device| EmbeddingConfig::new(VOCABULARY, DIM).init(d);
        let uniform = Initializer::Uniform { min: -0.02, max: 0.02 };
        let model = Sequential::<Tensor<2, Int>>::new()
            .push_module("embed", embedding, |m, ids| m.forward(ids))
            .push("block", Block::new)
            .push("head", move |d| Head { weight: uniform.init([VOCABULARY, DIM], d) })
            .tie(["embed.weight", "head.weight"]);
        let builder = Pipeline::builder(model).loss(CrossEntropy).micro_batches(2);
        let builder = builder.backend(Flex::new().threads(threads)).stages(stages);
        let builder = builder.optimizer(AdamConfig::new().init()).learning_rate(1e-3);
        let builder = builder.clip_gradients(Clipping::Norm(0.1)).seed(7);
        let mut pipeline = builder.build().expect("a pipeline");
        let step = pipeline.step(ids(0), ids(1)).expect("a step");
        let after = pipeline.evaluate(ids(0), ids(1)).expect("a loss").loss;
        assert!(after < step.loss, "{after} after {}", step.loss);
        let norm = step.gradient_norm.expect("it is measured");
        (step.loss.to_bits(), norm.to_bits(), after.to_bits(), parameter_bits(&mut pipeline))
    };
    let expected = run((1, 1));
    for other in [(1, 2), (1, 3), (1, 8), (3, 1), (3, 2), (2, 3), (3, 8)] {
        assert!(run(other) == expected, "stages and threads {other:?}");
    }
}

/// Multiplies very often, one time after the other.
#[derive(Module, Debug)]
struct Recurrence {
    factor: Param<Tensor<2>>,
    #[module(skip)]
    times: usize,
}

impl Layer for Recurrence {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
        (0..self.times).fold(x, |x, _| x * self.factor.val())
    }
}

#[test]
fn long_recurrences_dont_overflow_the_stack() {
    let model = Sequential::<Tensor<2>>::new().push("long", |device| Recurrence {
        factor: Initializer::Ones.init([1, 1], device),
        times: 60_000,
    });
    let builder = Pipeline::builder(model).loss(MeanSquaredError).schedule(GPipe::default());
    let mut pipeline = sgd(builder.micro_batches(2), (1, 1)).build().expect("a pipeline");
    let (x, y) = (Tensor::ones([2, 1], &Device::flex()), Tensor::zeros([2, 1], &Device::flex()));
    let gradients = pipeline.gradients(x, y).expect("gradients").gradients;
    // The derivative of the mean of `factor ^ 120,000`.
    let found: Vec<f32> = gradients["long.factor"].iter::<f32>().collect();
    assert_eq!(found, [120_000.0]);
}

/// Flex, but the thread of the last rank drops its worker.
struct NoLastThread;

struct Drops;

impl RankThread for Drops {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        drop(worker);
    }
}

impl Backend for NoLastThread {
    fn name(&self) -> &str {
        "threadless"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Flex::new().devices()
    }

    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        if rank == 1 { Ok(Box::new(Drops)) } else { Flex::new().rank_thread(rank) }
    }
}

#[test]
fn a_rank_without_a_worker_is_named_when_the_pipeline_is_built() {
    let model = Sequential::<Tensor<2>>::new().linear("a", 3, 3).linear("b", 3, 3);
    let error = Pipeline::builder(model).backend(NoLastThread).stages(2).build().map(drop);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("the worker of rank 1 hasn't started"), "{error}");
}
