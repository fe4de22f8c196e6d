//! Learns to read a secret code, with the model split over two pipeline stages.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{EmbeddingConfig, Linear, LinearConfig};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::{Device, Int, Tensor, TensorData, activation::gelu};
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

/// Sixteen messages of 32 letters, and what they mean.
fn messages(number: usize) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let letters = (0..16 * 32).map(|i| (i * (i + number) % 10_007 % 26) as i32);
    let meanings = letters.clone().map(|letter| (5 * letter + 8) % 26);
    let tensor = |all: Vec<i32>| Tensor::from_data(TensorData::new(all, [16, 32]), &Device::flex());
    (tensor(letters.collect()), tensor(meanings.collect()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Sequential::<Tensor<2, Int>>::new()
        .push_module("embed", |d| EmbeddingConfig::new(26, 64).init(d), |m, ids| m.forward(ids))
        .repeat("blocks", 6, |d| Block {
            up: LinearConfig::new(64, 256).init(d),
            down: LinearConfig::new(256, 64).init(d),
        })
        .push_module("head", |d| LinearConfig::new(64, 26).init(d), |m, x: Tensor<3>| m.forward(x));
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(4)
        .schedule(schedule::OneFOneB)
        .checkpoint(recompute::ExceptLast)
        .optimizer(AdamConfig::new().init())
        .learning_rate(2e-4)
        .loss(CrossEntropy)
        .build()?;
    for step in 0..=100 {
        let (input, target) = messages(step);
        let done = pipeline.step(input, target)?;
        if step % 20 == 0 {
            println!("step {step:3}: loss {:.3}", done.loss);
        }
    }
    let (input, target) = messages(1000);
    println!("new messages: loss {:.3}", pipeline.evaluate(input, target)?.loss);
    Ok(())
}
