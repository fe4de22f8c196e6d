//! Errors of measuring a model.

use stovepipe_tune::TuneError;

use crate::error::build::BuildError;
use crate::error::stage::StageError;

/// The reasons why a model can't be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The model, the backend or the configuration is unusable.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The input or target can't be cut into samples.
    #[error("the {what} can't be cut into samples: {reason}")]
    Batch {
        /// The word for the value: input, target or side input.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// A size can't be measured with this batch.
    #[error(
        "the batch has {samples} samples, the sizes are {sizes:?}: give sizes from 1 to {samples}"
    )]
    Sizes {
        /// The sizes that were asked for, in samples.
        sizes: Vec<usize>,
        /// The number of samples in the batch.
        samples: usize,
    },
    /// A layer failed.
    #[error("measuring the layers {layers} failed: {source}")]
    Layer {
        /// The layers that were measured together.
        layers: String,
        /// The reason.
        source: StageError,
    },
    /// A layer panicked.
    #[error("one of the layers {layers} panicked while it was measured: its message stands above")]
    Panicked {
        /// The layers that were measured together.
        layers: String,
    },
    /// The measurements make no valid profile.
    #[error(transparent)]
    Tune(#[from] TuneError),
}
