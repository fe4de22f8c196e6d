//! The reasons for which there is no choice, and what to do about them.

use crate::report::Rejected;

/// Why a profile was refused or nothing could be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A profile isn't JSON, or not of this form.
    #[error("this is no profile: {0}")]
    Json(#[from] serde_json::Error),

    /// A profile is of a version that this program doesn't know.
    #[error("the profile has version {found}, this program reads version {known}: measure again")]
    Version {
        /// The profile's.
        found: u32,
        /// The one that is known.
        known: u32,
    },

    /// A profile contradicts itself.
    #[error("the profile is unusable: {reason}")]
    Profile {
        /// The fault.
        reason: String,
    },

    /// A request makes no sense.
    #[error("{what}: {reason}")]
    Request {
        /// The part of it.
        what: &'static str,
        /// The fault in it, and what to do.
        reason: String,
    },

    /// No configuration can run.
    #[error("no configuration fits{}{}", reasons(.rejected), help(*.more, *.ranks))]
    NothingFits {
        /// The configurations that were tried, and why they can't run; what lacks least memory
        /// first.
        rejected: Vec<Rejected>,
        /// With so many more bytes on every rank, the first of them would fit.
        more: Option<u64>,
        /// On so many ranks, the further ones like the last, something would fit.
        ranks: Option<usize>,
    },
}

/// The first reasons, each once.
fn reasons(rejected: &[Rejected]) -> String {
    const SHOWN: usize = 3;
    let mut reasons: Vec<&str> = Vec::new();
    for rejected in rejected {
        if !reasons.contains(&rejected.reason.as_str()) && reasons.len() < SHOWN {
            reasons.push(&rejected.reason);
        }
    }
    reasons.iter().map(|reason| format!("; {reason}")).collect()
}

/// Says what would fit.
fn help(more: Option<u64>, ranks: Option<usize>) -> String {
    let more = more.map(|bytes| format!("with {bytes} more bytes on every rank"));
    let ranks = ranks.map(|ranks| format!("on {ranks} ranks like the last one"));
    let ways: Vec<String> = more.into_iter().chain(ranks).collect();
    if ways.is_empty() { String::new() } else { format!("; it would fit {}", ways.join(", or ")) }
}
