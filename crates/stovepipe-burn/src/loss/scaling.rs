//! The loss scale, which keeps small gradients from vanishing in floats of 16 bits.

/// A factor for the loss before the backward, by which the gradients are divided after it.
///
/// It keeps small gradients from vanishing in 16 bits (Micikevicius et al., arXiv 1710.03740).
/// Powers of two change no bit of numbers that are in range.
///
/// If a gradient on any stage, or the sum of the squares of all gradients, isn't finite, the
/// step has [overflowed](crate::Step::overflowed), and no stage updates. These stay as if the
/// mini-batch had never come:
///
/// - parameters, optimizer states and running statistics
/// - learning rates
/// - the number of the step
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScaling {
    initial: f64,
    interval: Option<u64>,
}

impl LossScaling {
    /// Creates a scale that begins at 65536 and changes with the steps.
    ///
    /// It is doubled after 2000 updates in a row, and halved after every overflowed step, but
    /// not below 2⁻¹⁶.
    #[must_use]
    pub fn dynamic() -> Self {
        Self { initial: 65536.0, interval: Some(2000) }
    }

    /// Creates a scale that stays the same.
    ///
    /// A scale of 1 only detects gradients that aren't finite.
    #[must_use]
    pub fn fixed(scale: f64) -> Self {
        Self { initial: scale, interval: None }
    }

    /// Sets the scale to begin with.
    #[must_use]
    pub fn initial(self, scale: f64) -> Self {
        Self { initial: scale, ..self }
    }

    /// Sets the number of updates in a row, at least 1, after which the scale is doubled.
    ///
    /// A [fixed](Self::fixed) scale becomes dynamic.
    #[must_use]
    pub fn interval(self, updates: u64) -> Self {
        Self { interval: Some(updates.max(1)), ..self }
    }

    pub(crate) fn scale(self) -> f64 {
        self.initial
    }
}

/// The least value of a dynamic scale: gradients that still aren't finite have other causes.
const LEAST_SCALE: f64 = 1.0 / 65536.0;

/// The present scale and the updates that change it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Scaler {
    pub(crate) scale: f64,
    interval: Option<u64>,
    /// The number of updates since the scale changed, or a step overflowed.
    updates: u64,
}

impl Scaler {
    pub(crate) fn new(scaling: LossScaling) -> Self {
        Self { scale: scaling.initial, interval: scaling.interval, updates: 0 }
    }

    /// Counts an update, and doubles the scale when it is due.
    pub(crate) fn updated(&mut self) {
        self.updates += 1;
        if self.interval == Some(self.updates) {
            (self.scale, self.updates) = (self.scale * 2.0, 0);
        }
    }

    /// Halves a dynamic scale after gradients that weren't finite.
    pub(crate) fn overflowed(&mut self) {
        tracing::debug!(scale = self.scale, "a gradient isn't finite: nothing is updated");
        if self.interval.is_some() {
            (self.scale, self.updates) = ((self.scale / 2.0).max(LEAST_SCALE), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_double_after_updates_in_a_row_and_halve_at_once() {
        let mut scaler = Scaler::new(LossScaling::dynamic().initial(8.0).interval(2));
        let mut seen = Vec::new();
        for overflows in [false, true, false, false, false, false, true] {
            if overflows {
                scaler.overflowed()
            } else {
                scaler.updated()
            }
            seen.push(scaler.scale);
        }
        assert_eq!(seen, [8.0, 4.0, 4.0, 8.0, 8.0, 16.0, 8.0]);
        (0..100).for_each(|_| scaler.overflowed());
        assert_eq!(scaler.scale, LEAST_SCALE);
        let mut fixed = Scaler::new(LossScaling::fixed(3.0));
        fixed.overflowed();
        (0..5000).for_each(|_| fixed.updated());
        assert_eq!(fixed.scale, 3.0);
    }
}
