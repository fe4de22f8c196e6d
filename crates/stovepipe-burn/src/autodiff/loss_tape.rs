//! The loss of one micro-batch between its forward and its backward.

use burn::tensor::Tensor;

use crate::autodiff::tape::Tape;
use crate::error::stage::StageError;
use crate::loss::LossSum;
use crate::loss::erasure::{ErasedLoss, scaled, wide};
use crate::value::packet::Packet;
use crate::value::part::Part;

/// The loss of a micro-batch whose backward hasn't run.
pub(crate) struct LossTape {
    leaves: Vec<Box<dyn Part>>,
    sum: Tensor<1>,
}

impl LossTape {
    /// Computes the loss of a tape's outputs, and records it on that tape.
    pub(crate) fn continue_on(
        tape: &mut Tape,
        loss: &ErasedLoss,
        target: Packet,
    ) -> Result<LossSum, StageError> {
        // Nothing in a loss depends on parameters alone, so that nothing has to be lifted.
        let result = loss(wide(&tape.continued(true)), target)?;
        tape.loss = Some(result.sum.clone());
        Ok(result)
    }

    /// Computes the loss of outputs that are off the tape, and records it.
    pub(crate) fn record(
        loss: &ErasedLoss,
        outputs: Vec<Box<dyn Part>>,
        target: Packet,
    ) -> Result<(Self, LossSum), StageError> {
        let leaves: Vec<Box<dyn Part>> = outputs.into_iter().map(|part| part.leaf()).collect();
        let result = loss(wide(&leaves), target)?;
        Ok((Self { leaves, sum: result.sum.clone() }, result))
    }

    /// Returns the gradients of the outputs, for a loss multiplied by `scale`.
    ///
    /// Outputs that the loss doesn't depend on have none.
    pub(crate) fn backward(self, scale: f64) -> Vec<Option<Box<dyn Part>>> {
        if !self.sum.is_tracked() {
            return self.leaves.iter().map(|_| None).collect();
        }
        let mut gradients = scaled(self.sum, scale).backward();
        self.leaves.iter().map(|leaf| leaf.take_gradient(&mut gradients)).collect()
    }
}
