//! [`MpiError`]: why MPI can't be used.

use thiserror::Error;

/// The reason why this process can't take part in an MPI job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// Somebody else in this process uses MPI.
    #[error("MPI was initialized elsewhere in this process: leave it to stovepipe")]
    AlreadyInitialized,
    /// The last endpoint is gone, and MPI can't be started twice.
    #[error(
        "MPI has ended with the last endpoint, and can't be started again: keep one until the \
         process is done with MPI"
    )]
    Ended,
    /// The environment doesn't say how long a process may be silent.
    #[error(
        "STOVEPIPE_MPI_SILENCE is `{found}`: give the seconds that a process may be silent, from 1 \
         to a million, or leave it out for 15"
    )]
    Silence {
        /// The text that it has.
        found: String,
    },
    /// The thread that makes MPI's calls can't be started.
    #[error("the thread for MPI can't be started: {reason}")]
    Thread {
        /// The error of the system.
        reason: String,
    },
}
