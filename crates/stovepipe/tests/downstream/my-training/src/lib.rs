//! A pipeline whose schedule and partitioner come from elsewhere; see `tests/train.rs`.

use my_partitioner::Lopsided;
use my_schedule::Rounds;
use stovepipe::burn::nn::LinearConfig;
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::Tensor;
use stovepipe::prelude::*;
use stovepipe::partition::{Minimax};
use stovepipe::schedule::{OneFOneB};

/// Four linear layers on two stages.
pub type Toy = Pipeline<Tensor<2>, Tensor<2>, Tensor<2>>;

/// With the schedule and the partitioner of this workspace.
pub fn theirs() -> Result<Toy, stovepipe::BuildError> {
    pipeline(Rounds, Lopsided)
}

/// With stovepipe's own.
pub fn ours() -> Result<Toy, stovepipe::BuildError> {
    pipeline(OneFOneB, Minimax)
}

fn pipeline(
    schedule: impl Schedule + 'static,
    partitioner: impl Partitioner + 'static,
) -> Result<Toy, stovepipe::BuildError> {
    let mut model = Sequential::<Tensor<2>>::new();
    for name in ["a", "b", "c", "d"] {
        model = model.push_module(
            name,
            |d| LinearConfig::new(4, 4).init(d),
            |m, x: Tensor<2>| m.forward(x),
        );
    }
    Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(5)
        .schedule(schedule)
        .partitioner(partitioner)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(MeanSquaredError)
        .build()
}
