//! The checks, and running them one after the other, each within a limit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::backend::Backend;
use crate::backend::error::BackendError;
use crate::conformance::report::Finding;
use crate::conformance::verdict::{Outcome, Verdict};
use crate::conformance::{devices, memory, training, values};
use crate::error::panic::panic_message;

/// One check of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    act: fn(&Arc<dyn Backend>) -> Verdict,
}

impl Check {
    /// The name of the check.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Checks. A panic is a broken rule.
    ///
    /// # Errors
    ///
    /// Which rule was broken and how.
    pub fn run(&self, backend: &Arc<dyn Backend>) -> Verdict {
        catch_unwind(AssertUnwindSafe(|| (self.act)(backend)))
            .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_message(&*panic))))
    }
}

/// How long [`run_all`] lets a check run before it calls it hung. Software renderers compile
/// slowly.
pub const LIMIT: Duration = Duration::from_secs(600);

/// All checks, in the order of the suite.
#[must_use]
pub fn checks() -> Vec<Check> {
    macro_rules! check {
        ($($module:ident :: $name:ident),* $(,)?) => {
            vec![$(Check { name: stringify!($name), act: $module::$name }),*]
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

/// Runs every check on a backend. A layer of the models panics on purpose: that panic's message on
/// the error stream is part of the check.
///
/// # Errors
///
/// Which checks failed, and how.
pub fn run_all(backend: impl Backend + 'static) -> Result<Vec<Finding>, String> {
    run_all_within(LIMIT, backend)
}

/// As [`run_all`], with another limit than [`LIMIT`] for each check. A check that isn't done by
/// then is reported, its thread left behind, and no further one begun.
///
/// # Errors
///
/// As [`run_all`].
pub fn run_all_within(
    limit: Duration,
    backend: impl Backend + 'static,
) -> Result<Vec<Finding>, String> {
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let (mut findings, mut broken) = (Vec::new(), Vec::new());
    for check in checks() {
        let (sender, verdict) = mpsc::channel();
        let checked = Arc::clone(&backend);
        let act = move || {
            // Nobody waits for a check that took too long.
            sender.send(check.run(&checked)).ok();
        };
        std::thread::Builder::new()
            .name(check.name.to_owned())
            .spawn(act)
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

/// Checks that a backend which was asked for a device that isn't there says so, and what to do.
///
/// # Errors
///
/// Which rule was broken and how.
pub fn missing_device(backend: impl Backend) -> Verdict {
    let devices = catch_unwind(AssertUnwindSafe(|| backend.devices()));
    match devices.map_err(|panic| format!("devices() panicked: {}", panic_message(&*panic)))? {
        Err(BackendError::NoDevice { wanted, advice, .. })
            if !wanted.is_empty() && !advice.is_empty() =>
        {
            Ok(Outcome::Kept)
        }
        Err(error) => Err(format!("devices() should say what is missing and what to do: {error}")),
        Ok(devices) => Err(format!("devices() should fail, but returned {devices:?}")),
    }
}
