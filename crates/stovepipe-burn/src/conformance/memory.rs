//! The check that steps free what they allocate, and the way in which it tells a leak from
//! noise.
//!
//! A device's memory in use isn't the same after every step although nothing leaks. CubeCL
//! counts the description (shapes, strides, scalars) of each call of a kernel. It keeps that
//! for the next call that has the same one.
//!
//! Whether an operation writes over its input decides which call it is. That depends on when
//! another thread lets go of the input. So after any number of steps a description may come up
//! that wasn't there before.
//!
//! Therefore a difference between two steps says little. A leak grows with the number of steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stovepipe_checkpoint::Always;

use super::model::{Toy, batch, failure_of, pipeline};
use super::{Outcome, Verdict};
use crate::backend::Backend;

/// The number of steps in a row that must leave the same memory in use, to show that none of
/// them leaks.
const STILL: usize = 4;
/// The number of stretches of steps over which memory is compared where it doesn't come to
/// rest.
const STRETCHES: usize = 6;
/// The number of steps in a stretch.
const STRETCH: usize = 8;

/// Checks that a step frees what it allocates, if it succeeds and if it fails.
pub(super) fn frees_memory(backend: &Arc<dyn Backend>) -> Verdict {
    let fails = Arc::new(AtomicBool::new(false));
    let probe_fails = Arc::clone(&fails);
    let probe =
        move || assert!(!probe_fails.load(Ordering::SeqCst), "this panic is part of the check");
    let mut toy = pipeline(backend, 2, Always, probe)?;
    let devices = backend.devices().map_err(failure_of("devices()"))?;
    let mut used = |does_fail: bool| {
        fails.store(does_fail, Ordering::SeqCst);
        step(&mut toy, does_fail)?;
        toy.synchronize().map_err(failure_of("synchronizing"))?;
        Ok::<_, String>(devices.iter().map(|device| backend.memory(device)).sum::<Option<u64>>())
    };
    if used(false)?.is_none() {
        return Ok(Outcome::Inapplicable("the device doesn't report its memory"));
    }
    let mut watch = |does_fail| {
        watched(|| used(does_fail)?.ok_or_else(|| "memory() reports it only at times".to_owned()))
    };
    let leak = |kind: &str, from: u64, to: u64, steps: usize| {
        Err(format!("{steps} more {kind} raised the memory in use from {from} to {to} bit by bit"))
    };
    if let Watched::Grows { from, to, steps } = watch(false)? {
        return leak("steps", from, to, steps);
    }
    let failed = match watch(true)? {
        Watched::Stays { lowest, .. } => lowest,
        Watched::Grows { from, to, steps } => return leak("failed steps", from, to, steps),
    };
    match watch(false)? {
        // Memory that is kept for later calls, and was first needed in failed steps, is still
        // in use.
        Watched::Stays { highest, .. } if failed > highest => Err(format!(
            "failed steps left {failed} bytes in use, of which the next steps freed all except \
             {highest}"
        )),
        Watched::Stays { .. } => Ok(Outcome::Kept),
        Watched::Grows { from, to, steps } => {
            leak("steps, after some that failed,", from, to, steps)
        }
    }
}

/// Takes a step, and fails unless it fails or succeeds as it should.
fn step(toy: &mut Toy, does_fail: bool) -> Result<(), String> {
    let (x, y) = batch(0);
    match (toy.step(x, y), does_fail) {
        (Ok(_), true) => Err("a step with a layer that panics succeeded".to_owned()),
        (Err(error), false) => Err(failure_of("a step")(error)),
        _ => Ok(()),
    }
}

/// The course of the memory in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watched {
    /// It came to rest, or goes up and down.
    Stays { lowest: u64, highest: u64 },
    /// It grew from the first stretch to the last, and in each between them.
    Grows { from: u64, to: u64, steps: usize },
}

/// Takes readings, one after each step, until they have come to rest or are enough to judge.
fn watched(mut reading: impl FnMut() -> Result<u64, String>) -> Result<Watched, String> {
    let mut readings: Vec<u64> = Vec::new();
    while readings.len() < STRETCHES * STRETCH {
        readings.push(reading()?);
        // There is one reading more than there are steps between them.
        let last = &readings[readings.len().saturating_sub(STILL + 1)..];
        let [first, rest @ ..] = last else { continue };
        if rest.len() == STILL && rest.iter().all(|reading| reading == first) {
            return Ok(Watched::Stays { lowest: *first, highest: *first });
        }
    }
    let ranges: Vec<(u64, u64)> = readings.chunks(STRETCH).map(extremes).collect();
    let (first, last) = (ranges[0], ranges[ranges.len() - 1]);
    // Chance may put the lowest readings in order, but then it doesn't keep the stretches apart
    // as well.
    if ranges.is_sorted_by(|earlier, later| earlier.0 < later.0) && last.0 > first.1 {
        return Ok(Watched::Grows { from: first.0, to: last.1, steps: readings.len() });
    }
    let (lowest, highest) = extremes(&readings[readings.len() - STRETCH..]);
    Ok(Watched::Stays { lowest, highest })
}

/// Returns the lowest and the highest reading.
fn extremes(readings: &[u64]) -> (u64, u64) {
    readings
        .iter()
        .fold((u64::MAX, 0), |(low, high), reading| (low.min(*reading), high.max(*reading)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::scramble;

    /// Watches a device whose memory in use is `usage(step)`.
    fn watch(usage: impl Fn(u64) -> u64) -> Watched {
        let mut step = 0;
        let reading = || {
            step += 1;
            Ok(100_000 + usage(step))
        };
        watched(reading).expect("readings")
    }

    fn jitter(seed: u64, step: u64, most: u64) -> u64 {
        scramble(seed << 32 | step) % (most + 1)
    }

    fn grows(watched: Watched) -> bool {
        matches!(watched, Watched::Grows { .. })
    }

    #[test]
    fn a_leak_is_always_found() {
        assert!(grows(watch(|step| step)), "a byte in each step");
        assert!(grows(watch(|step| step / 3 * 16)), "16 bytes in every third step");
        for seed in 0..10_000 {
            // Descriptions that come up by chance don't hide a leak.
            let kept =
                |step| (0..step).filter(|step| jitter(seed, *step, 11) == 0).count() as u64 * 48;
            assert!(grows(watch(|step| 16 * step + kept(step))), "with what is kept, {seed}");
            let up_and_down = |step| jitter(seed, step, 7 * 16);
            assert!(grows(watch(|step| 16 * step + up_and_down(step))), "with jitter, {seed}");
        }
    }

    #[test]
    fn noise_is_never_taken_for_a_leak() {
        assert_eq!(watch(|_| 0), Watched::Stays { lowest: 100_000, highest: 100_000 });
        // Several steps may pass before a description comes up.
        let late = watch(|step| if step < 4 { 0 } else { 48 });
        assert_eq!(late, Watched::Stays { lowest: 100_048, highest: 100_048 });
        for seed in 0..10_000 {
            for most in [1, 48, 100_000] {
                assert!(!grows(watch(|step| jitter(seed, step, most))), "jitter {seed}, {most}");
            }
            // In every third step there is something new, until all have come up.
            let kept = |step| {
                let came_up = (0..step).filter(|step| jitter(seed, *step, 2) == 0).count() as u64;
                48 * came_up.min(8)
            };
            assert!(!grows(watch(kept)), "what is kept, {seed}");
        }
    }

    #[test]
    fn a_device_that_stops_reporting_is_an_error() {
        assert_eq!(watched(|| Err("no".to_owned())), Err("no".to_owned()));
    }
}
