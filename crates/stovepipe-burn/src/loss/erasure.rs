//! Losses with their types erased, as the last stage runs them.

use burn::tensor::Tensor;

use crate::error::panic::guarded;
use crate::error::stage::StageError;
use crate::loss::{Loss, LossSum};
use crate::value::boundary::{Boundary, from_parts};
use crate::value::packet::Packet;
use crate::value::part::Part;

/// A loss with its types erased.
pub(crate) type ErasedLoss =
    dyn Fn(Vec<Box<dyn Part>>, Packet) -> Result<LossSum, StageError> + Send + Sync;

/// Erases the types of a loss or a metric, which `what` names in errors.
///
/// It fails on values of other types, if it panics, and if its sum or its weight is not one
/// number.
pub(crate) fn erase<O: Boundary, T: Boundary>(
    what: String,
    loss: impl Loss<O, T>,
) -> Box<ErasedLoss> {
    Box::new(move |output, target| {
        let output = from_parts::<O>(output).map_err(StageError::Loss)?;
        let target = from_parts::<T>(target.into_values()).map_err(StageError::Loss)?;
        let named = |message| StageError::LossPanicked { what: what.clone(), message };
        let result = guarded(|| Ok(loss.forward(output, target)), named)?;
        result.check(&what)?;
        Ok(result)
    })
}

/// Widens outputs for losses and metrics, because sums over many samples need more than 16
/// bits.
pub(crate) fn wide(outputs: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    outputs.iter().map(|part| part.clone_box().widen()).collect()
}

/// Multiplies a loss by `scale`.
pub(crate) fn scaled(loss: Tensor<1>, scale: f64) -> Tensor<1> {
    if scale == 1.0 { loss } else { loss.mul_scalar(scale) }
}
