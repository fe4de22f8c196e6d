//! Findings of the suite, for persons.

use std::fmt;
use std::io::Write;

use crate::conformance::verdict::Outcome;

/// A check's finding of a backend; shown as a line for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The backend's name.
    pub backend: String,
    /// The check's name.
    pub check: &'static str,
    /// Whether the rule is kept, or why that wasn't checked.
    pub outcome: Outcome,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, check, outcome } = self;
        match outcome {
            Outcome::Kept => write!(f, "{backend}: {check} ok"),
            Outcome::Inapplicable(why) => write!(f, "{backend}: {check} NOT CHECKED: {why}"),
        }
    }
}

/// Says on the error stream what was found, past the test harness, which would swallow it: what
/// wasn't checked must be seen.
pub fn tell(findings: &[Finding]) {
    for finding in findings {
        say(&finding.to_string());
    }
}

/// Says so that a backend wasn't checked at all, and why.
pub fn tell_unchecked(backend: &str, why: &dyn fmt::Display) {
    say(&format!("{backend}: NOT CHECKED: {why}"));
}

fn say(line: &str) {
    // Where there is no error stream nobody is told.
    writeln!(std::io::stderr(), "{line}").ok();
}
