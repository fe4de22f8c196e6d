//! Errors of devices and of rank threads.

/// An error of a device or of a rank thread.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A device isn't there.
    #[error("the {backend} backend has no {wanted}; found: {}. {advice}", listed(.found))]
    NoDevice {
        /// The backend's name.
        backend: String,
        /// The device that was looked for, like `CUDA device 1`.
        wanted: String,
        /// The devices that there are.
        found: Vec<String>,
        /// The advice what to install or to ask for instead, as a sentence.
        advice: String,
    },
    /// A device or a thread failed.
    #[error("the {backend} backend failed: {reason}")]
    Failed {
        /// The backend's name.
        backend: String,
        /// The failure, in words.
        reason: String,
    },
}

impl BackendError {
    /// Makes a [`BackendError::Failed`] of this backend.
    pub fn failed(backend: impl Into<String>, reason: impl ToString) -> Self {
        Self::Failed { backend: backend.into(), reason: reason.to_string() }
    }
}

fn listed(found: &[String]) -> String {
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}
