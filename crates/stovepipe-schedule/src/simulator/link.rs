//! The time of messages: on their link, and on their ranks.

use serde::{Deserialize, Serialize};

/// How long a message takes from one rank to another.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Link {
    /// Time from the end of a transfer until the receiver has the message.
    pub latency: f64,
    /// Time during which one message occupies the link.
    pub transfer: f64,
}

impl Link {
    /// For messages of `bytes` over a link that carries `bandwidth` bytes in a unit of time.
    #[must_use]
    pub fn of_bytes(latency: f64, bytes: f64, bandwidth: f64) -> Self {
        // Nothing takes no time, however slow the link.
        let transfer = if bytes == 0.0 { 0.0 } else { bytes / bandwidth };
        Self { latency, transfer }
    }
}

/// The time that a message takes of its ranks themselves, such as for encoding and decoding it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Handling {
    /// On the rank that sends, before the message is on its link.
    pub send: f64,
    /// On the rank that receives, once the message is there.
    pub receive: f64,
}
