//! Skip connections: values that pass by layers.

use serde::{Deserialize, Serialize};

/// A value that one layer puts aside and a later one takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipProfile {
    /// The number of the layer that makes it.
    pub from: usize,
    /// The number of the layer that takes it.
    pub to: usize,
    /// Its bytes at each size that was measured, ascending.
    pub bytes: Vec<u64>,
}

/// A skip at one size between the measured ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SkipCost {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: u64,
}

impl SkipProfile {
    /// Its bytes for `samples` samples, if that is within the measured sizes.
    pub(super) fn at(&self, sizes: &[usize], samples: usize) -> Option<SkipCost> {
        let above = sizes.iter().position(|size| *size >= samples)?;
        let (high, high_bytes) = (sizes[above], self.bytes[above]);
        let (low, low_bytes) = match high == samples {
            true => (high, high_bytes),
            false => {
                let below = above.checked_sub(1)?;
                (sizes[below], self.bytes[below])
            }
        };
        let part = if high == low { 0.0 } else { (samples - low) as f64 / (high - low) as f64 };
        let bytes = low_bytes as f64 + part * (high_bytes as f64 - low_bytes as f64);
        Some(SkipCost { from: self.from, to: self.to, bytes: bytes.ceil() as u64 })
    }
}
