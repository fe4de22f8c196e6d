//! Errors of steps, evaluations and predictions.

use stovepipe_runtime::{Cause, StepError};
use stovepipe_transport::WireError;

use crate::error::build::BuildError;
use crate::error::stage::StageError;
use crate::value::boundary::BoundaryError;

/// The reasons why a step, an evaluation or a prediction failed.
///
/// Unless an error says otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The input or target can't be split into micro-batches.
    #[error("the {what} can't be split into micro-batches: {reason}")]
    Batch {
        /// The word for the value: input or target.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// Input and target have different numbers of samples.
    #[error("the input has {input} samples, the target {target}: give as many of both")]
    Samples {
        /// The number of samples in the input.
        input: usize,
        /// The number of samples in the target.
        target: usize,
    },
    /// A side input has another number of samples than the input.
    #[error(
        "the side input `{name}` has {found} samples, the input {input}: give one for each sample, \
         or give what is the same for all samples with `.side_constant(\"{name}\", …)`"
    )]
    SideInput {
        /// The side input's name.
        name: String,
        /// The number of samples in the input.
        input: usize,
        /// The number of samples in the side input.
        found: usize,
    },
    /// The pipeline has no plan for this number of samples.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A stage's result can't be used, or its device failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Another process sent a timeline that can't be read.
    #[error("another process sent a timeline that can't be read: do all run the same version?")]
    Timeline,
    /// There is no such rank.
    #[error("there is no rank {rank}: the pipeline has {ranks}, which count from 0")]
    NoRank {
        /// The rank that was asked for.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A layer panicked while its output was recorded.
    #[error("a layer panicked while its output was recorded: its message stands above")]
    Panicked,
    /// The peak is asked of a memory counter that doesn't know it.
    #[error(
        "the memory counter can't tell the most that was allocated at once: give one that \
         implements `peak_bytes`"
    )]
    NoPeaks,
    /// The outputs of the micro-batches can't be joined.
    #[error("the outputs of the micro-batches can't be joined along the batch axis")]
    Join,
    /// The model's output has another type than the model states.
    #[error("the model's output {0}")]
    Output(#[from] BoundaryError),
    /// The model's output can't be sent to the other processes.
    #[error("the model's output can't be shared: {0}")]
    Wire(#[from] WireError),
}

impl TrainError {
    /// Returns the name of the layer that failed, if a layer of this process did.
    ///
    /// Where ranks are processes, the others have the name only in the text of the error.
    ///
    /// ```
    /// use stovepipe_burn::{StageError, TrainError};
    ///
    /// let panicked =
    ///     StageError::LayerPanicked { layer: "up".to_owned(), message: "why".to_owned() };
    /// assert_eq!(TrainError::from(panicked).layer(), Some("up"));
    /// ```
    #[must_use]
    pub fn layer(&self) -> Option<&str> {
        match self {
            Self::Stage(error) => error.layer(),
            Self::Step(StepError::Stage { cause: Cause::Error(error), .. }) => {
                error.downcast_ref::<StageError>()?.layer()
            }
            _ => None,
        }
    }
}
