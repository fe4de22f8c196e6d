//! The finding of a single check.

/// A check's finding: whether the rule is kept, or which was broken and how.
pub type Verdict = Result<Outcome, String>;

/// The finding of a check that found no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The rule is kept.
    Kept,
    /// There was nothing to check, because of this.
    Inapplicable(&'static str),
}
