//! Pipelines over several processes: [`Mpi`] is a [`Transport`](stovepipe_transport::Transport)
//! whose ranks are the processes of an MPI job, on one machine or on a cluster.
//!
//! Values travel as point-to-point messages, which carry the whole tag. The receiver finds out
//! their size, so that varying shapes need no handshake. The last tensor of a value is sent from
//! where it is; whatever comes before it is copied into a buffer. All is copied once when it is
//! decoded. Buffers are used again.
//!
//! Long values travel in pieces of up to 4 MiB, of which 8 MiB are on their way to a peer at a
//! time. So signs of life, aborts, gathers and short values pass them, however slow the link is.
//! What is left of values of an aborted step isn't sent.
//!
//! One thread of each process makes all MPI calls, because large messages move only inside such
//! calls. It moves them while the process computes, and sleeps longer and longer while nothing
//! happens.
//!
//! MPI's own collectives can't be given up halfway, which a failed step has to; so gathers are
//! messages too, about log₂ of the number of ranks for each rank.
//!
//! ```no_run
//! use futures::executor::block_on;
//! use stovepipe_mpi::Mpi;
//! use stovepipe_transport::Transport;
//!
//! let mpi = Mpi::world()?;
//! let endpoint: &dyn Transport<Vec<u8>> = &mpi;
//! let greetings = block_on(endpoint.all_gather(0, 0, b"hello".to_vec()))?;
//! assert_eq!(greetings.len(), endpoint.ranks());
//! endpoint.end_step(0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backoff;
mod endpoint;
mod error;
mod frame;
mod incoming;
mod limits;
mod link;
mod mpi;
mod outgoing;
mod pool;
mod progress;
mod round;

/// The crate whose communicators endpoints can be made on.
pub use ::mpi as rsmpi;
pub use error::MpiError;
pub use mpi::{Mpi, MpiBuilder};
