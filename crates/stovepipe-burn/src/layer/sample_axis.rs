//! The axis of a tensor along which the samples of a micro-batch lie.

use std::fmt;

/// The axis of a tensor that holds the samples of a micro-batch.
///
/// Random numbers are keyed by sample, so they must know it. Axes count from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SampleAxis {
    /// An axis with one entry for each sample, like axis 1 of `[sequence, batch, width]`.
    Batch(usize),
    /// An axis that was flattened, with several entries for each sample, one sample after the
    /// other. An example is axis 0 of `[batch * sequence, width]`.
    ///
    /// With the samples inside, as in `[sequence * batch, width]`, the numbers would depend on
    /// the micro-batches.
    Flattened(usize),
}

impl SampleAxis {
    /// Returns the number of the axis.
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Batch(axis) | Self::Flattened(axis) => axis,
        }
    }

    /// Says whether an axis of this length holds as many samples.
    pub(crate) fn holds(self, length: usize, samples: usize) -> bool {
        match self {
            Self::Batch(_) => length == samples,
            Self::Flattened(_) => samples > 0 && length.is_multiple_of(samples),
        }
    }
}

impl fmt::Display for SampleAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(axis) => write!(f, "axis {axis}"),
            Self::Flattened(axis) => write!(f, "the flattened axis {axis}"),
        }
    }
}
