//! The scale of the loss, which keeps small gradients from vanishing in floats of 16 bits.

/// Multiplies the loss before the backward and divides the gradients by the same number after it, so that
/// what is small doesn't vanish in 16 bits (Micikevicius et al., arXiv 1710.03740).
///
/// If a gradient, or the sum of the squares of all, isn't finite then on any stage, no stage updates, and the
/// step says that it [overflowed](crate::Step::overflowed): parameters, optimizer states, running statistics, learning rates and the
/// number of the step stay, as if the mini-batch had never come. Powers of two change no bit of what is in
/// range.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScaling {
    initial: f64,
    interval: Option<u64>,
}

impl LossScaling {
    /// From 65536 on: doubled after 2000 updates in a row, halved for every one that is skipped, but not
    /// below 2⁻¹⁶.
    #[must_use]
    pub fn dynamic() -> Self {
        Self { initial: 65536.0, interval: Some(2000) }
    }

    /// Always the same; 1 only looks out for gradients that aren't finite.
    #[must_use]
    pub fn fixed(scale: f64) -> Self {
        Self { initial: scale, interval: None }
    }

    /// Begins with another scale.
    #[must_use]
    pub fn initial(self, scale: f64) -> Self {
        Self { initial: scale, ..self }
    }

    /// Doubles the scale after so many updates in a row, at least 1; one that was
    /// [fixed](Self::fixed) becomes dynamic.
    #[must_use]
    pub fn interval(self, updates: u64) -> Self {
        Self { interval: Some(updates.max(1)), ..self }
    }

    pub(crate) fn scale(self) -> f64 {
        self.initial
    }
}

/// Where a dynamic scale stops falling: what still isn't finite then has other causes.
const LEAST_SCALE: f64 = 1.0 / 65536.0;

/// The scale as it stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Scaler {
    pub(crate) scale: f64,
    interval: Option<u64>,
    /// Updates since it changed.
    updates: u64,
}

impl Scaler {
    pub(crate) fn new(scaling: LossScaling) -> Self {
        Self { scale: scaling.initial, interval: scaling.interval, updates: 0 }
    }

    /// Follows an update.
    pub(crate) fn updated(&mut self) {
        self.updates += 1;
        if self.interval == Some(self.updates) {
            (self.scale, self.updates) = (self.scale * 2.0, 0);
        }
    }

    /// Follows gradients that weren't finite.
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
