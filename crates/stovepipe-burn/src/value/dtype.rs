//! Floats of fewer bits: casting and widening.

use burn::tensor::{DType, FloatDType, Tensor};

/// Whether floats of this type have 16 bits.
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// At least 32 bits.
pub(crate) fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_half(x.dtype()) { x.cast(FloatDType::F32) } else { x }
}

/// Computes with at least 32 bits, and returns the type that was given.
pub(crate) fn widened<const D: usize>(
    x: Tensor<D>,
    compute: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    cast(compute(widen(x.clone())), x.dtype())
}

/// `x` in another type of float; anything else stays, such as quantized weights.
pub(crate) fn cast<const D: usize>(x: Tensor<D>, dtype: impl Into<DType>) -> Tensor<D> {
    let dtype = dtype.into();
    if x.dtype() == dtype || !x.dtype().is_float() {
        return x;
    }
    x.cast(FloatDType::from(dtype))
}
