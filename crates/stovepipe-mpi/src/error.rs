//! [`MpiError`]: why MPI can't be used.

use std::time::Duration;

use thiserror::Error;

/// The reason why this process can't take part in an MPI job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// Somebody else in this process has started MPI.
    #[error(
        "MPI was initialized elsewhere in this process: hand a communicator of its own to \
         `Mpi::on`, or leave MPI to stovepipe"
    )]
    AlreadyInitialized,
    /// MPI can't be called by this crate's thread beside the program's own.
    #[error(
        "MPI was initialized for calls from one thread at a time ({provided}): initialize it with \
         `initialize_with_threading(Threading::Multiple)`"
    )]
    Threads {
        /// The level that it provides.
        provided: String,
    },
    /// MPI runs with other limits already.
    #[error(
        "MPI runs with a silence of {running:?} already: set the same for all endpoints of a \
         process, or set it for the first only"
    )]
    OtherLimits {
        /// The silence that processes may keep.
        running: Duration,
    },
    /// The last endpoint is gone, and MPI can't be started twice.
    #[error(
        "MPI has ended with the last endpoint, and can't be started again: keep one until the \
         process is done with MPI"
    )]
    Ended,
    /// It isn't said how long a process may be silent.
    #[error(
        "{source_of} is `{found}`: give the seconds that a process may be silent, from 1 to a \
         million, or leave it out for 15"
    )]
    Silence {
        /// The variable, or what the program has set.
        source_of: &'static str,
        /// Its value.
        found: String,
    },
    /// The thread that makes MPI's calls can't be started.
    #[error("the thread for MPI can't be started: {reason}")]
    Thread {
        /// The error of the system.
        reason: String,
    },
}
