//! The endpoint of one rank as checks see it, and what a check says of it.

use crate::transport::Transport;

/// The endpoint of one rank, as the checks see it.
pub type Endpoint = dyn Transport<Vec<u8>>;

/// `Ok`, or which rule was broken and how.
pub type Verdict = Result<(), String>;
