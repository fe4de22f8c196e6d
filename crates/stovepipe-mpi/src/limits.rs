//! How long processes may be silent, as the program or the environment says.

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
    /// Those of the program, or else of the environment.
    pub(crate) fn new(silence: Option<Duration>) -> Result<Self, MpiError> {
        if let Some(silence) = silence {
            let seconds = silence.as_secs_f64();
            return Self::of(seconds)
                .ok_or_else(|| refuse("the silence set", &seconds.to_string()));
        }
        match std::env::var(SILENCE) {
            Ok(text) => Self::read(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(error) => Err(refuse(SILENCE, &error.to_string())),
        }
    }

    /// Those for a silence of so many seconds. Signs of life are sent often enough that several can
    /// be late.
    fn of(seconds: f64) -> Option<Self> {
        let silence = (1.0..=1e6).contains(&seconds).then(|| Duration::from_secs_f64(seconds))?;
        Some(Self { beat: Self::default().beat.min(silence / 5), silence })
    }

    fn read(text: &str) -> Result<Self, MpiError> {
        let seconds = text.trim().parse().ok();
        seconds.and_then(Self::of).ok_or_else(|| refuse(SILENCE, text))
    }
}

fn refuse(source: &'static str, found: &str) -> MpiError {
    MpiError::Silence { source_of: source, found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_given_in_seconds() {
        let with = Limits::read;
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

    #[test]
    fn what_the_program_sets_comes_first() {
        let with = |silence: Duration| Limits::new(Some(silence));
        assert_eq!(with(Duration::from_secs(2)), Limits::read("2"));
        let error = with(Duration::from_millis(10)).expect_err("too short").to_string();
        assert!(error.contains("the silence set is `0.01`"), "{error}");
    }
}
