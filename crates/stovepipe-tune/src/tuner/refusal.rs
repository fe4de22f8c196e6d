//! Why a configuration can't run.

/// A reason, and the bytes that are missing if that is it.
#[derive(Clone)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) missing: Option<u64>,
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self { reason: error.to_string(), missing: None }
    }
}
