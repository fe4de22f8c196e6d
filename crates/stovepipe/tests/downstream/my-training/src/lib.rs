//! A program that depends on `stovepipe` alone: the layer of stovepipe's README, and a pipeline of
//! such layers whose schedule and partitioner may come from elsewhere; see `tests/train.rs`.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Tensor, activation::gelu};
use stovepipe::prelude::*;

#[derive(Module, Debug)]
struct Block {
    up: Linear,
    down: Linear,
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        x.clone() + context.linear(&self.down, gelu(context.linear(&self.up, x)))
    }
}

/// Blocks on two stages.
pub type Blocks = Pipeline<Tensor<3>, Tensor<3>, Tensor<3>>;

/// Four blocks of width 4, cut and run as is asked for.
pub fn blocks(
    schedule: impl Schedule + 'static,
    partitioner: impl Partitioner + 'static,
) -> Result<Blocks, stovepipe::BuildError> {
    let model = Sequential::<Tensor<3>>::new().repeat("blocks", 4, |d| Block {
        up: LinearConfig::new(4, 8).init(d),
        down: LinearConfig::new(8, 4).init(d),
    });
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
