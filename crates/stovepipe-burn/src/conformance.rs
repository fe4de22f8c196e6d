//! The conformance suite for implementors of [`Backend`]: checks of what a pipeline needs of a
//! device.
//!
//! It checks the [contract](Backend#contract), not speed. Its models are so small that a
//! software renderer trains them in seconds.
//!
//! ```
//! # use burn::tensor::Device;
//! # use stovepipe_burn::{Backend, BackendError};
//! # struct MyBackend;
//! # impl Backend for MyBackend {
//! #     fn name(&self) -> &str { "mine" }
//! #     fn devices(&self) -> Result<Vec<Device>, BackendError> { Ok(vec![Device::flex()]) }
//! # }
//! use stovepipe_burn::conformance;
//!
//! let findings = conformance::run_all(MyBackend).expect("MyBackend keeps the contract");
//! conformance::tell(&findings);
//! ```
//!
//! A backend that can be asked for a device which isn't there also calls [`missing_device`].

use std::any::Any;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::backend::Backend;
use crate::backend::error::BackendError;

mod devices;
mod memory;
mod model;
mod reference;
#[cfg(test)]
mod tests;
mod training;
mod values;

/// The verdict of a check: that there is no fault, or which rule was broken and how.
pub type Verdict = Result<Outcome, String>;

/// The outcome of a check that found no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The rule is kept.
    Kept,
    /// There was nothing to check, for this reason.
    Inapplicable(&'static str),
}

/// One check of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    function: fn(&Arc<dyn Backend>) -> Verdict,
}

impl Check {
    /// Returns the name of the check.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the check. A panic counts as a broken rule.
    ///
    /// # Errors
    ///
    /// The rule that was broken, and how.
    pub fn run(&self, backend: &Arc<dyn Backend>) -> Verdict {
        catch_unwind(AssertUnwindSafe(|| (self.function)(backend)))
            .unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic))))
    }
}

/// The finding of a check about a backend. Displayed, it is a line for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The name of the backend.
    pub backend: String,
    /// The name of the check.
    pub check: &'static str,
    /// The outcome of the check.
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

/// The time after which [`run_all`] calls a check hung. It is long because software renderers
/// compile slowly.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Returns all checks, in the order of the suite.
#[must_use]
pub fn checks() -> Vec<Check> {
    macro_rules! check {
        ($($module:ident :: $name:ident),* $(,)?) => {
            vec![$(Check { name: stringify!($name), function: $module::$name }),*]
        };
    }
    check![
        devices::lists_devices,
        devices::runs_workers,
        devices::flushes_and_synchronizes,
        values::moves_values,
        values::draws_the_same_numbers,
        training::agrees_with_flex,
        training::repeats_every_bit,
        training::shares_devices,
        training::trains_beside_flex,
        training::survives_failures,
        memory::frees_memory,
    ]
}

/// Runs every check on a backend.
///
/// A layer of the models panics on purpose: that panic's message on the error stream is part of
/// the check.
///
/// # Errors
///
/// The checks that failed, and how.
pub fn run_all(backend: impl Backend + 'static) -> Result<Vec<Finding>, String> {
    run_all_within(LIMIT, backend)
}

/// Runs every check like [`run_all`], with another limit than [`LIMIT`] for each.
///
/// A check that isn't done by then is reported, its thread is left behind, and no further check
/// begins.
///
/// # Errors
///
/// The checks that failed, and how.
pub fn run_all_within(
    limit: Duration,
    backend: impl Backend + 'static,
) -> Result<Vec<Finding>, String> {
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let (mut findings, mut broken) = (Vec::new(), Vec::new());
    for check in checks() {
        let (sender, verdict) = mpsc::channel();
        let checked = Arc::clone(&backend);
        let run_check = move || {
            // The receiver is gone if the check took too long.
            sender.send(check.run(&checked)).ok();
        };
        std::thread::Builder::new()
            .name(check.name.to_owned())
            .spawn(run_check)
            .map_err(|error| format!("no thread for {}: {error}", check.name))?;
        match verdict.recv_timeout(limit) {
            Ok(Ok(outcome)) => {
                let backend = backend.name().to_owned();
                findings.push(Finding { backend, check: check.name, outcome });
            }
            Ok(Err(how)) => broken.push(format!("{}: {how}", check.name)),
            Err(_) => {
                broken.push(format!("{}: not done within {limit:?}, so it hangs", check.name));
                break;
            }
        }
    }
    if broken.is_empty() { Ok(findings) } else { Err(broken.join("; ")) }
}

/// Writes findings to the error stream, past the test harness, which would swallow them.
///
/// Checks that didn't apply must be seen.
pub fn tell(findings: &[Finding]) {
    for finding in findings {
        say(&finding.to_string());
    }
}

/// Writes to the error stream that a backend wasn't checked at all, and why.
pub fn tell_unchecked(backend: &str, why: &dyn fmt::Display) {
    say(&format!("{backend}: NOT CHECKED: {why}"));
}

/// Writes a line to the error stream.
fn say(line: &str) {
    // Without an error stream there is nothing to write to.
    writeln!(std::io::stderr(), "{line}").ok();
}

/// Checks that a backend which is asked for a missing device says so, and how to help it.
///
/// # Errors
///
/// The rule that was broken, and how.
pub fn missing_device(backend: impl Backend) -> Verdict {
    let devices = catch_unwind(AssertUnwindSafe(|| backend.devices()));
    match devices.map_err(|panic| format!("devices() panicked: {}", message(&*panic)))? {
        Err(BackendError::NoDevice { wanted, advice, .. })
            if !wanted.is_empty() && !advice.is_empty() =>
        {
            Ok(Outcome::Kept)
        }
        Err(error) => Err(format!("devices() should say what is missing and what to do: {error}")),
        Ok(devices) => Err(format!("devices() should fail, but returned {devices:?}")),
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
