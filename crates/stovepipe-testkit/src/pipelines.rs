//! Pipelines that train the models.

use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::Tensor;
use stovepipe::prelude::*;
use stovepipe::recompute::Never;
use stovepipe::schedule::{GPipe, OneFOneB};
use stovepipe::{Boundary, Builder};

use crate::models::toy;
use crate::values::{Bits, Tokens, batch, parameter_bits};

/// A pipeline from token ids to logits, compared with token ids.
pub type Classifier = Pipeline<Tokens, Tensor<3>, Tokens>;

/// How a pipeline of the [`toy`] model is set up.
pub struct Setup {
    /// Parts that the layers are cut into.
    pub stages: usize,
    /// Stages on each rank.
    pub stages_per_rank: usize,
    /// Micro-batches in a mini-batch.
    pub micro_batches: usize,
    /// The order of the work.
    pub schedule: Box<dyn Schedule>,
    /// Which activations are recomputed.
    pub policy: Box<dyn CheckpointPolicy>,
    /// Threads for each rank.
    pub threads: usize,
}

/// One stage, one micro-batch, one thread, nothing recomputed.
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

impl Setup {
    /// Adam, cross-entropy, a cut into stages of equally many layers, and always the same seed.
    #[must_use]
    pub fn builder(self) -> Builder<Tokens, Tensor<3>, Tokens> {
        classifier(toy())
            .backend(Flex::new().threads(self.threads))
            .stages(self.stages)
            .stages_per_rank(self.stages_per_rank)
            .micro_batches(self.micro_batches)
            .schedule(self.schedule)
            .checkpoint(self.policy)
            .layer_costs(LayerCosts::Uniform)
            .seed(7)
    }
}

/// Builds a pipeline of the [`toy`] model.
#[must_use]
pub fn build(setup: Setup) -> Classifier {
    setup.builder().build().expect("a pipeline")
}

/// Chooses Adam at a rate that small models take well.
#[must_use]
pub fn adam<I, O, T>(builder: Builder<I, O, T>) -> Builder<I, O, T>
where
    I: Boundary,
    O: Boundary,
    T: Boundary,
{
    builder.optimizer(AdamConfig::new().init()).learning_rate(1e-2)
}

/// Begins a pipeline that trains a model with Adam on cross-entropy; all else is at its default.
#[must_use]
pub fn classifier(model: Sequential<Tokens, Tensor<3>>) -> Builder<Tokens, Tensor<3>, Tokens> {
    adam(Pipeline::builder(model).loss(CrossEntropy))
}

/// Builds the pipeline that [`same_on_any_cut`](crate::same_on_any_cut) compares the others with.
#[must_use]
pub fn on_one_stage<I, O, T>(builder: Builder<I, O, T>) -> Pipeline<I, O, T>
where
    I: Boundary,
    O: Boundary,
    T: Boundary,
{
    builder
        .backend(Flex::new())
        .micro_batches(3)
        .schedule(OneFOneB)
        .seed(11)
        .build()
        .expect("a pipeline")
}

/// Runs three steps, and returns their losses and the parameters after them.
#[must_use]
pub fn train(mut pipeline: Classifier) -> (Vec<f64>, Bits) {
    let losses = (0..3).map(|step| {
        let (x, y) = batch(7, step);
        pipeline.step(x, y).expect("a step").loss
    });
    (losses.collect(), parameter_bits(&mut pipeline))
}
