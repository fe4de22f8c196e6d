//! Panics as errors, with the name of what panicked.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Runs `work`, and returns the error that `name` makes of its message if it panics.
pub(crate) fn guarded<R, E>(
    work: impl FnOnce() -> Result<R, E>,
    name: impl FnOnce(String) -> E,
) -> Result<R, E> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(name(panic_message(&*payload).to_owned())))
}
