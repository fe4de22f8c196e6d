//! How long processes may be silent, as the environment says.

use std::time::Duration;

use crate::error::MpiError;

/// The variable for the seconds that a process may be silent.
pub(crate) const SILENCE: &str = "STOVEPIPE_MPI_SILENCE";

/// The limits of a job. All its processes should have the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// How often a process tells the next one that it is alive.
    pub(crate) beat: Duration,
    /// A process that is silent for longer takes the job down.
    pub(crate) silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { beat: Duration::from_secs(1), silence: Duration::from_secs(15) }
    }
}

impl Limits {
    /// Those of the environment.
    pub(crate) fn from_env() -> Result<Self, MpiError> {
        match std::env::var(SILENCE) {
            Ok(text) => Self::with_silence(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(error) => Err(Self::refuse(&error.to_string())),
        }
    }

    /// Those for a silence of so many seconds. Signs of life are sent often enough that several can
    /// be late.
    fn with_silence(text: &str) -> Result<Self, MpiError> {
        let seconds: f64 = text.trim().parse().map_err(|_| Self::refuse(text))?;
        if !(1.0..=1e6).contains(&seconds) {
            return Err(Self::refuse(text));
        }
        let silence = Duration::from_secs_f64(seconds);
        Ok(Self { beat: Self::default().beat.min(silence / 5), silence })
    }

    fn refuse(found: &str) -> MpiError {
        MpiError::Silence { found: found.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_given_in_seconds() {
        let with = Limits::with_silence;
        assert_eq!(with("15"), Ok(Limits::default()));
        let long = with(" 120.5 ").expect("seconds");
        assert_eq!((long.silence.as_millis(), long.beat.as_secs()), (120_500, 1));
        let short = with("2").expect("seconds");
        assert_eq!(short.beat, Duration::from_millis(400));
        for wrong in ["", "0", "-3", "NaN", "inf", "1e9", "15 s"] {
            let error = with(wrong).expect_err("refused").to_string();
            assert!(error.contains(SILENCE) && error.contains(wrong), "{error}");
        }
    }
}
