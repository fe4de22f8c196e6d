//! Casting of float tensors to other types, and widening of those with 16 bits.

use burn::tensor::{DType, FloatDType, Tensor};

/// Says whether the type is a float of 16 bits.
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Casts floats of 16 bits to 32 bits; others stay as they are.
pub(crate) fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_half(x.dtype()) { x.cast(FloatDType::F32) } else { x }
}

/// Computes with at least 32 bits, and casts the result to the type of `x`.
pub(crate) fn widened<const D: usize>(
    x: Tensor<D>,
    compute: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    cast(compute(widen(x.clone())), x.dtype())
}

/// Casts floats to another type; tensors of other types, such as quantized ones, stay as they
/// are.
pub(crate) fn cast<const D: usize>(x: Tensor<D>, dtype: impl Into<DType>) -> Tensor<D> {
    let dtype = dtype.into();
    if x.dtype() == dtype || !x.dtype().is_float() {
        return x;
    }
    x.cast(FloatDType::from(dtype))
}
