//! How values move between the ranks of a pipeline: the [`Transport`] trait, the
//! collective that a step needs, channels within one process ([`InProcess`]) and a
//! [conformance suite](conformance) for those who write another transport. Values that
//! can travel to another process are [`Wire`].
//!
//! Nothing here knows a tensor library, a schedule or an async runtime, nor which message
//! a rank should send next.
//!
//! ```
//! use futures::executor::block_on;
//! use stovepipe_transport::{Direction, InProcess, Tag, Transport};
//!
//! # fn main() -> Result<(), stovepipe_transport::TransportError> {
//! let group = InProcess::<String>::group(2);
//! let direction = Direction::Forward;
//! let tag = Tag { step: 0, micro_batch: 0, from_stage: 0, to_stage: 1, direction };
//!
//! let received = block_on(async {
//!     group[0].send(1, tag, "activations".to_string()).await?;
//!     group[1].recv(0, tag).await
//! })?;
//! assert_eq!(received, "activations");
//!
//! for endpoint in &group {
//!     endpoint.end_step(0);
//! }
//! # Ok(())
//! # }
//! ```

pub mod conformance;

mod error;
mod group;
mod in_process;
mod tag;
mod transport;
mod wire;

pub use error::TransportError;
pub use in_process::InProcess;
pub use tag::{Direction, Tag};
pub use transport::Transport;
pub use wire::{Wire, WireError};
