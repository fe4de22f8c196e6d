//! Errors of a stage at work.

use crate::backend::error::BackendError;
use crate::error::shape::ShapeError;
use crate::value::boundary::BoundaryError;

/// The reasons why a stage fails.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// A layer panicked.
    #[error("layer `{layer}` panicked: {message}")]
    LayerPanicked {
        /// The layer.
        layer: String,
        /// The message of the panic.
        message: String,
    },
    /// The loss or a metric panicked.
    #[error("{what} panicked: {message}")]
    LossPanicked {
        /// The words for it: the loss, or the metric and its name.
        what: String,
        /// The message of the panic.
        message: String,
    },
    /// A value of the wrong type arrived.
    #[error("layer `{layer}` {source}")]
    Boundary {
        /// The layer.
        layer: String,
        /// The type that it takes, and the one that arrived.
        source: BoundaryError,
    },
    /// A layer's forward, run once more, returned another shape than at first.
    #[error(
        "layer `{layer}` returned {output} when it was run again, but the gradient that arrived is \
         {gradient}: a forward must return the same shape for the same input"
    )]
    Shape {
        /// The layer.
        layer: String,
        /// The output's type and shape.
        output: String,
        /// The gradient's type and shape.
        gradient: String,
    },
    /// A forward stashed other values than the layer declares.
    #[error("layer `{layer}` says that it stashes {declared:?}, but its forward stashed {found:?}")]
    Stash {
        /// The layer.
        layer: String,
        /// The names that the layer declares.
        declared: Vec<String>,
        /// The names that the forward stashed.
        found: Vec<String>,
    },
    /// A value has another shape than it is given as.
    #[error(transparent)]
    Value(#[from] ShapeError),
    /// The loss was given a value of another type than it takes.
    #[error("the loss {0}")]
    Loss(BoundaryError),
    /// The executor asked for an action out of order.
    #[error("layer `{layer}`: {problem}")]
    Order {
        /// The layer.
        layer: String,
        /// The problem.
        problem: &'static str,
    },
    /// The mini-batch has no target, but the step needs a loss.
    #[error("the step needs a loss, but the mini-batch has no target")]
    NoTarget,
    /// The weight of the whole mini-batch isn't finite and above 0, so that no mean exists.
    #[error(
        "the loss's weights add up to {weight}: the mean over the mini-batch is undefined; give \
         it at least one sample or token that counts"
    )]
    Weight {
        /// The sum.
        weight: f64,
    },
    /// A value or a gradient isn't finite, and was looked for.
    #[error("layer `{layer}`: {what} isn't finite, and nothing before it was")]
    NotFinite {
        /// The layer.
        layer: String,
        /// The value, in words.
        what: String,
    },
    /// The loss or its gradient isn't finite, and was looked for. All outputs of layers are.
    #[error(
        "{what} isn't finite, though the model's output is: look at the logarithms, roots and \
         quotients of the loss"
    )]
    LossNotFinite {
        /// The loss or its gradient.
        what: &'static str,
    },
    /// Gradients that are to be clipped aren't finite.
    #[error(
        "the norm of the gradient is {norm}: nothing is updated; lower the learning rate, look \
         for the layer that overflows with `.find_non_finite(true)`, or skip such updates with \
         `.loss_scaling(…)`"
    )]
    Norm {
        /// The norm.
        norm: f64,
    },
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Another stage sent a report that can't be read.
    #[error("the report of stage {stage} can't be read: do all ranks run the same version?")]
    Report {
        /// The stage.
        stage: usize,
    },
}

impl StageError {
    /// Returns the name of the layer that failed, if a layer did.
    #[must_use]
    pub fn layer(&self) -> Option<&str> {
        match self {
            Self::LayerPanicked { layer, .. }
            | Self::Boundary { layer, .. }
            | Self::Shape { layer, .. }
            | Self::Stash { layer, .. }
            | Self::NotFinite { layer, .. }
            | Self::Order { layer, .. } => Some(layer),
            Self::Value(error) => error.layer(),
            _ => None,
        }
    }

    /// Says that the executor asked for an action before a step has begun.
    pub(crate) fn no_step(layer: &str) -> Self {
        Self::Order { layer: layer.to_owned(), problem: "no step has begun" }
    }

    /// Says that a layer lacks the activations that its forward should have left.
    pub(crate) fn gone(layer: &str) -> Self {
        Self::Order {
            layer: layer.to_owned(),
            problem: "its activations for this micro-batch are gone or were never made",
        }
    }
}
