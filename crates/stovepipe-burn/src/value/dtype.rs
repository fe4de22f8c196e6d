//! Casting of float tensors to other types, and widening of those with 16 bits.

use burn::tensor::{DType, FloatDType, Tensor};

/// Says whether the type is a float of 16 bits.
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Casts floats of 16 bits to 32 bits; others stay as they are.
pub(crate) fn widen<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if is_half(tensor.dtype()) { tensor.cast(FloatDType::F32) } else { tensor }
}

/// Computes with at least 32 bits, and casts the result to the type of `tensor`.
pub(crate) fn widened<const D: usize>(
    tensor: Tensor<D>,
    compute: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    cast(compute(widen(tensor.clone())), tensor.dtype())
}

/// Casts floats to another type; tensors of other types, such as quantized ones, stay as they
/// are.
pub(crate) fn cast<const D: usize>(tensor: Tensor<D>, dtype: impl Into<DType>) -> Tensor<D> {
    let dtype = dtype.into();
    if tensor.dtype() == dtype || !tensor.dtype().is_float() {
        return tensor;
    }
    tensor.cast(FloatDType::from(dtype))
}
