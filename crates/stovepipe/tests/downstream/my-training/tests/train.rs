//! Trains with a schedule and a partitioner from elsewhere, and compares with stovepipe's own.

use my_partitioner::Lopsided;
use my_schedule::Rounds;
use stovepipe::burn::nn::LinearConfig;
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;

type Toy = Pipeline<Tensor<2>, Tensor<2>, Tensor<2>>;

fn pipeline(
    schedule: impl Schedule + 'static,
    partitioner: impl Partitioner + 'static,
) -> Result<Toy, stovepipe::BuildError> {
    let mut model = Sequential::<Tensor<2>>::new();
    for name in ["a", "b", "c", "d"] {
        model = model.push_module(name, |d| LinearConfig::new(4, 4).init(d), |m, x: Tensor<2>| m.forward(x));
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let (x, y) = (Tensor::<2>::ones([10, 4], &device), Tensor::<2>::zeros([10, 4], &device));
    let mut theirs = pipeline(Rounds, Lopsided)?;
    let mut ours = pipeline(OneFOneB, Minimax)?;
    assert_eq!(theirs.partition().sizes(), [1, 3]);
    for _ in 0..3 {
        let (theirs, ours) = (theirs.step(x.clone(), y.clone())?, ours.step(x.clone(), y.clone())?);
        // Both drain micro-batches in ascending order, so every bit is the same.
        assert_eq!(theirs.loss, ours.loss);
    }
    println!("the same bits");
    Ok(())
}
