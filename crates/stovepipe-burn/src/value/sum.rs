//! Sums over tensors of any size, in an order that doesn't depend on the number of threads.
//!
//! Flex divides a sum over 4 Mi elements or more among its threads, and adds the pieces in an
//! order that depends on them. Sums along an axis don't depend on threads. So large tensors are
//! added by rows first.

use burn::tensor::Tensor;

/// The number of elements from which on a tensor is added by rows.
const LARGE: usize = 1 << 20;

/// The length of a row.
const ROW: usize = 1 << 12;

/// Adds up all elements of a tensor, in the same order for any number of threads.
///
/// The result has shape `[1]`.
pub(crate) fn ordered_sum<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let (rows, rest) = partial_sums(tensor);
    match rest {
        Some(rest) => rows.sum() + rest,
        None => rows.sum(),
    }
}

/// Adds up the elements of a tensor in pieces: by rows if there are many, and what is left.
///
/// The sums of the rows have shape `[rows]`, the sum of the rest has shape `[1]`. They don't
/// depend on the number of threads.
pub(crate) fn partial_sums<const D: usize>(tensor: Tensor<D>) -> (Tensor<1>, Option<Tensor<1>>) {
    let elements = tensor.shape().num_elements();
    if elements < LARGE {
        return (tensor.sum(), None);
    }
    let (rows, rest) = (elements / ROW, elements % ROW);
    let flat = tensor.reshape([elements]);
    let sums = |flat: Tensor<1>| flat.reshape([rows, ROW]).sum_dim(1).reshape([rows]);
    if rest == 0 {
        return (sums(flat), None);
    }
    let whole = rows * ROW;
    (sums(flat.clone().narrow(0, 0, whole)), Some(flat.narrow(0, whole, rest).sum()))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn every_element_counts_once() {
        let device = Device::flex();
        for elements in [1, 7, LARGE - 1, LARGE, LARGE + 1, LARGE + ROW + 5] {
            // Small whole numbers, so that sums of floats are exact in any order.
            let values: Vec<f32> = (0..elements).map(|i| (i % 7) as f32 - 3.0).collect();
            let expected: f32 = values.iter().sum();
            let tensor = Tensor::<1>::from_data(TensorData::new(values, [elements]), &device);
            assert_eq!(ordered_sum(tensor).into_scalar::<f32>(), expected, "{elements}");
        }
    }

    #[test]
    fn gradients_are_those_of_a_sum() {
        let device = Device::flex().autodiff();
        let elements = LARGE + 3;
        let leaf = Tensor::<1>::ones([elements], &device).require_grad();
        let gradients = ordered_sum(leaf.clone() * 2.0).backward();
        let gradient = leaf.grad(&gradients).expect("a gradient");
        assert_eq!(gradient.clone().min().into_scalar::<f32>(), 2.0);
        assert_eq!(gradient.max().into_scalar::<f32>(), 2.0);
    }
}
