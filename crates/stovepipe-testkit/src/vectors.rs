//! Models of vectors with four entries, and their training by plain gradient descent.

use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::{Builder, Flex, MeanSquaredError, Pipeline, Sequential};

/// A batch of vectors. Shape `[batch, 4]`.
pub type Floats = Tensor<2>;

/// Trains a model on Flex by plain gradient descent on the mean squared error.
#[must_use]
pub fn sgd(model: Sequential<Floats>) -> Builder<Floats, Floats, Floats> {
    let builder = Pipeline::builder(model).backend(Flex::new()).loss(MeanSquaredError);
    builder.optimizer(SgdConfig::new().init()).learning_rate(0.1)
}

/// Makes a linear layer from four entries to four.
#[must_use]
pub fn linear(device: &Device) -> Linear {
    LinearConfig::new(4, 4).init(device)
}

/// Runs a linear layer.
#[must_use]
pub fn forward(module: &Linear, x: Floats) -> Floats {
    module.forward(x)
}
