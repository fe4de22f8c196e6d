//! The model that the checks train, and its short training.
//!
//! It has what is hard for a device: token ids, an input that is used four times, dropout, and
//! a tuple with whole numbers that get no gradient.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_schedule::OneFOneB;

use crate::backend::Backend;
use crate::layer::Layer;
use crate::layer::context::LayerContext;
use crate::loss::losses::CrossEntropy;
use crate::model::sequential::Sequential;
use crate::pipeline::Pipeline;
use crate::pipeline::layer_costs::LayerCosts;

const DIM: usize = 8;
const SEQ: usize = 6;
const CLASSES: usize = 11;
pub(super) const SAMPLES: usize = 6;
pub(super) const LAYERS: usize = 5;

/// Token ids, of the shape samples by positions.
type Ids = Tensor<2, Int>;
/// A pipeline of the model.
pub(super) type Toy = Pipeline<Ids, Tensor<3>, Ids>;

#[derive(Module, Debug)]
struct Embed {
    embedding: Embedding,
}

impl Layer for Embed {
    type Input = Ids;
    type Output = (Tensor<3>, Ids);

    fn forward(&self, ids: Ids, _: &mut LayerContext<'_>) -> Self::Output {
        (self.embedding.forward(ids.clone()), ids)
    }
}

#[derive(Module, Debug)]
struct Attention {
    norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
}

impl Attention {
    fn new(device: &Device) -> Self {
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
    type Input = (Tensor<3>, Ids);
    type Output = (Tensor<3>, Ids);

    fn forward(&self, (x, ids): Self::Input, context: &mut LayerContext<'_>) -> Self::Output {
        let query = self.query.forward(self.norm.forward(x.clone()));
        let key = self.key.forward(x.clone());
        let value = self.value.forward(x.clone());
        let scores = softmax(query.matmul(key.swap_dims(1, 2)), 2);
        (x + context.dropout(scores.matmul(value), 0.25), ids)
    }
}

/// Makes the model, with a layer in the middle that calls `probe`.
fn model(probe: impl Fn() + Clone + Send + Sync + 'static) -> Sequential<Ids, Tensor<3>> {
    Sequential::<Ids>::new()
        .push("embed", |d| Embed { embedding: EmbeddingConfig::new(CLASSES, DIM).init(d) })
        .push("attention", Attention::new)
        .push_fn("probe", move |(x, ids): (Tensor<3>, Ids)| {
            probe();
            (silu(x), ids)
        })
        .push_fn("drop-ids", |(x, _): (Tensor<3>, Ids)| x)
        .push_module(
            "head",
            |d| LinearConfig::new(DIM, CLASSES).init(d),
            |m, x: Tensor<3>| m.forward(x),
        )
}

/// Builds the model on so many stages of a backend.
pub(super) fn pipeline(
    backend: &Arc<dyn Backend>,
    stages: usize,
    policy: impl CheckpointPolicy + 'static,
    probe: impl Fn() + Clone + Send + Sync + 'static,
) -> Result<Toy, String> {
    let momentum = MomentumConfig::new();
    Pipeline::builder(model(probe))
        .backend(Arc::clone(backend))
        .stages(stages)
        .micro_batches(3)
        .schedule(OneFOneB)
        .checkpoint(policy)
        .layer_costs(LayerCosts::Uniform)
        .optimizer(SgdConfig::new().with_momentum(Some(momentum)).init())
        .learning_rate(0.5)
        .loss(CrossEntropy)
        .seed(3)
        .build()
        .map_err(|error| format!("{stages} stages can't be built: {error}"))
}

/// Returns token ids and targets on the host, different for each step.
pub(super) fn batch(step: usize) -> (Ids, Ids) {
    let ids = |factor: usize| {
        let id_at = |place: usize| ((place * factor + step * 3 + place / 7) % CLASSES) as i32;
        let ids: Vec<i32> = (0..SAMPLES * SEQ).map(id_at).collect();
        Tensor::from_data(TensorData::new(ids, [SAMPLES, SEQ]), &Device::flex())
    };
    (ids(5), ids(3))
}

/// The results of a short training.
pub(super) struct Trained {
    pub(super) initial: Values,
    pub(super) gradients: Values,
    /// The losses of two steps, and of an evaluation after them.
    pub(super) losses: Vec<f64>,
    pub(super) parameters: Values,
}

/// Parameters or gradients by path, on the host.
pub(super) type Values = BTreeMap<String, TensorData>;

/// Computes gradients once, takes two steps and evaluates.
pub(super) fn train(mut pipeline: Toy) -> Result<Trained, String> {
    let initial = parameters(&mut pipeline)?;
    let (x, y) = batch(0);
    let gradients = pipeline.gradients(x, y).map_err(failure_of("the gradients"))?.gradients;
    let mut losses = Vec::new();
    for step in 0..2 {
        let (x, y) = batch(step);
        losses.push(pipeline.step(x, y).map_err(failure_of("a step"))?.loss);
    }
    let (x, y) = batch(2);
    losses.push(pipeline.evaluate(x, y).map_err(failure_of("an evaluation"))?.loss);
    let parameters = parameters(&mut pipeline)?;
    Ok(Trained { initial, gradients, losses, parameters })
}

/// Reads the parameters of a pipeline.
pub(super) fn parameters(pipeline: &mut Toy) -> Result<Values, String> {
    pipeline.parameters().map_err(failure_of("reading the parameters"))
}

/// Names in an error what failed.
pub(super) fn failure_of<E: ToString>(what: &str) -> impl Fn(E) -> String {
    move |error| format!("{what} failed: {}", error.to_string())
}
