//! Measured times.

use serde::{Deserialize, Serialize};

/// A measured time in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// The median over several runs.
    pub median: f64,
    /// The distance between the lower and the upper quartile.
    pub spread: f64,
}

impl Time {
    /// The time of several runs, in seconds; zero of none.
    #[must_use]
    pub fn of(mut runs: Vec<f64>) -> Self {
        runs.sort_by(f64::total_cmp);
        let Some(last) = runs.len().checked_sub(1) else { return Self::default() };
        let at = |quarter: usize| runs[last * quarter / 4];
        Self { median: at(2), spread: at(3) - at(1) }
    }

    /// A time without spread.
    #[must_use]
    pub fn exactly(seconds: f64) -> Self {
        Self { median: seconds, spread: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_medians_with_quartiles() {
        assert_eq!(Time::of(vec![3.0]), Time::exactly(3.0));
        let found = Time::of(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((found.median, found.spread), (3.0, 2.0));
        assert_eq!(Time::of(vec![]), Time::default());
    }
}
