//! Errors about values of another shape than they are given as.

use crate::layer::sample_axis::SampleAxis;

/// The reasons why a value is refused for its shape.
///
/// Broadcast or cut along another axis, it would count differently for every number of
/// micro-batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A layer adds something else than one number to the loss.
    #[error(
        "layer `{layer}` adds a tensor of shape {shape:?} to the loss: sum it over the micro-batch \
         to shape [1]"
    )]
    AddedLoss {
        /// The layer.
        layer: String,
        /// The shape of what it adds.
        shape: Vec<usize>,
    },
    /// A loss or a metric returns a sum or a weight that isn't one number.
    #[error(
        "the {part} of {what} has the shape {shape:?}: sum it over the micro-batch to shape [1]"
    )]
    LossSum {
        /// The words for it: the loss, or the metric and its name.
        what: String,
        /// The word for the part: sum or weight.
        part: &'static str,
        /// The shape of that part.
        shape: Vec<usize>,
    },
    /// A tensor of the model's output doesn't hold the samples along its first axis.
    #[error(
        "layer `{layer}` returns {output} as the model's output of a micro-batch of {samples} \
         samples: the first axis must be the batch axis, for the loss, metrics and predictions; \
         sums over samples belong in the loss or in `add_loss`"
    )]
    Output {
        /// The last layer of the model.
        layer: String,
        /// The tensor's type and shape.
        output: String,
        /// The number of samples in the micro-batch.
        samples: usize,
    },
    /// A layer draws random numbers for a tensor whose axis doesn't hold the samples.
    #[error(
        "layer `{layer}` draws random numbers of shape {shape:?}, but {axis} doesn't hold the \
         {samples} samples of the micro-batch: name the axis that does with `dropout_along`, \
         `uniform_along` or `normal_along`"
    )]
    SampleAxis {
        /// The layer.
        layer: String,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The axis that should hold the samples.
        axis: SampleAxis,
        /// The number of samples in the micro-batch.
        samples: usize,
    },
    /// A batch normalization has a single value of each feature to normalize by itself.
    #[error(
        "layer `{layer}` normalizes a micro-batch of shape {shape:?} in training, which has a \
         single value of each feature: its distance from the mean is zero, and so is every \
         gradient; give it more samples or fewer micro-batches, or use a norm that isn't over the \
         batch"
    )]
    SingleValue {
        /// The layer.
        layer: String,
        /// The shape of the input, `[batch, features, …]`.
        shape: Vec<usize>,
    },
}

impl ShapeError {
    /// Returns the name of the layer that is to blame, if one is.
    #[must_use]
    pub fn layer(&self) -> Option<&str> {
        match self {
            Self::AddedLoss { layer, .. }
            | Self::Output { layer, .. }
            | Self::SampleAxis { layer, .. }
            | Self::SingleValue { layer, .. } => Some(layer),
            Self::LossSum { .. } => None,
        }
    }
}
