//! Batches of made-up values, and the comparing of tensors.

use std::collections::BTreeMap;

use stovepipe::burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use stovepipe::{Boundary, Pipeline};

/// Width of the models.
pub const DIM: usize = 8;
/// Positions in a sequence.
pub const SEQ: usize = 5;
/// Tokens that there are.
pub const CLASSES: usize = 11;

/// Token ids of shape `[batch, seq]`.
pub type Tokens = Tensor<2, Int>;

/// The bytes of tensors, by name.
pub type Bits = BTreeMap<String, Vec<u8>>;

/// Token ids and targets of shape `[samples, SEQ]`, different for each `step`.
#[must_use]
pub fn batch(samples: usize, step: usize) -> (Tokens, Tokens) {
    let tokens = |factor: usize| {
        let ids = (0..samples * SEQ).map(|i| ((i * factor + step * 3 + i / 7) % CLASSES) as i32);
        let data = TensorData::new(ids.collect::<Vec<i32>>(), [samples, SEQ]);
        Tensor::from_data(data, &Device::flex())
    };
    (tokens(5), tokens(3))
}

/// Random floats of this shape.
#[must_use]
pub fn floats<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, &Device::flex())
}

/// The bytes of every tensor: equal only if every bit is.
#[must_use]
pub fn bits(tensors: &BTreeMap<String, TensorData>) -> Bits {
    tensors.iter().map(|(name, data)| (name.clone(), data.as_bytes().to_vec())).collect()
}

/// The bytes of every parameter of a pipeline.
#[must_use]
pub fn parameter_bits<I: Boundary, O: Boundary, T: Boundary>(
    pipeline: &mut Pipeline<I, O, T>,
) -> Bits {
    bits(&pipeline.parameters().expect("parameters"))
}

/// The norm of the difference of two whole gradients, divided by that of the second.
#[must_use]
pub fn relative_difference(
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
