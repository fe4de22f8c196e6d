//! The time that messages take of their ranks.

use serde::{Deserialize, Serialize};
use stovepipe_schedule::Handling;

/// The seconds that a message takes of the rank that sends it and of the one that receives it, such
/// as for encoding and decoding: for each message, and for each of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MessageCosts {
    /// Sending a message, however small.
    pub send: f64,
    /// Sending each byte.
    pub send_byte: f64,
    /// Receiving a message that is there, however small.
    pub receive: f64,
    /// Receiving each byte.
    pub receive_byte: f64,
}

impl MessageCosts {
    /// The time that a message of so many bytes takes.
    #[must_use]
    pub fn of(&self, bytes: u64) -> Handling {
        let bytes = bytes as f64;
        Handling {
            send: self.send + bytes * self.send_byte,
            receive: self.receive + bytes * self.receive_byte,
        }
    }

    /// The fault in it, if there is one.
    pub(crate) fn fault(&self) -> Option<String> {
        let times = [self.send, self.send_byte, self.receive, self.receive_byte];
        let wrong = times.into_iter().find(|time| !time.is_finite() || *time < 0.0)?;
        Some(format!("{wrong} s isn't a time: give finite ones of at least 0"))
    }
}
