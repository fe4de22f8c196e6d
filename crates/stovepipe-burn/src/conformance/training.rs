//! The checks of training: that it computes what Flex computes, repeats itself and goes on
//! after a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stovepipe_checkpoint::{Always, Never};

use super::model::{LAYERS, Trained, Values, batch, failure_of, parameters, pipeline, train};
use super::reference::Reference;
use super::{Outcome, Verdict};
use crate::backend::Backend;
use crate::backend::mixed::Mixed;

/// The probe of a model in which no layer fails.
fn nothing() {}

/// Trains the model on Flex, on one stage.
fn trained_on_flex() -> Result<Trained, String> {
    train(pipeline(&(Arc::new(Reference) as Arc<dyn Backend>), 1, Never, nothing)?)
}

/// Checks that training starts from the same bits as on Flex, and stays within the backend's
/// precision of it.
///
/// Losses, the gradient as a whole and parameters are compared, on one stage, on several, and
/// recomputed.
pub(super) fn agrees_with_flex(backend: &Arc<dyn Backend>) -> Verdict {
    let expected = trained_on_flex()?;
    for stages in [1, 2] {
        compare(&train(pipeline(backend, stages, Never, nothing)?)?, &expected, backend)?;
        compare(&train(pipeline(backend, stages, Always, nothing)?)?, &expected, backend)?;
    }
    Ok(Outcome::Kept)
}

/// Checks that a deterministic backend gives the same bits again, and on several stages, and
/// recomputed.
pub(super) fn repeats_every_bit(backend: &Arc<dyn Backend>) -> Verdict {
    if !backend.is_deterministic() {
        return Ok(Outcome::Inapplicable("the backend doesn't claim to be deterministic"));
    }
    let expected = train(pipeline(backend, 1, Never, nothing)?)?;
    let again = [(1, false), (1, true), (3, false), (LAYERS, true)];
    for (stages, recomputes) in again {
        let toy = match recomputes {
            true => pipeline(backend, stages, Always, nothing),
            false => pipeline(backend, stages, Never, nothing),
        };
        let found = train(toy?)?;
        let losses = |trained: &Trained| -> Vec<u64> {
            trained.losses.iter().map(|loss| loss.to_bits()).collect()
        };
        if losses(&found) != losses(&expected)
            || bits(&found.gradients) != bits(&expected.gradients)
            || bits(&found.parameters) != bits(&expected.parameters)
        {
            return Err(format!(
                "{stages} stages, {} recomputation, gave other bits than one stage",
                if recomputes { "with" } else { "without" }
            ));
        }
    }
    Ok(Outcome::Kept)
}

/// Checks that more ranks than devices share them.
pub(super) fn shares_devices(backend: &Arc<dyn Backend>) -> Verdict {
    let devices = backend.devices().map_err(failure_of("devices()"))?.len();
    if devices >= LAYERS {
        return Ok(Outcome::Inapplicable("there are more devices than the model has layers"));
    }
    compare(&train(pipeline(backend, devices + 1, Never, nothing)?)?, &trained_on_flex()?, backend)
}

/// Checks that values and gradients pass both ways between the backend and Flex.
///
/// A stage before and a stage after that of the backend are on Flex.
pub(super) fn trains_beside_flex(backend: &Arc<dyn Backend>) -> Verdict {
    let mixed = Mixed::new().ranks(1, Reference).ranks(1, Arc::clone(backend)).ranks(1, Reference);
    let mixed: Arc<dyn Backend> = Arc::new(mixed);
    compare(&train(pipeline(&mixed, 3, Never, nothing)?)?, &trained_on_flex()?, &mixed)
}

/// Checks that a layer that panics ends the step with an error and changes nothing, and that
/// the next step goes on.
pub(super) fn survives_failures(backend: &Arc<dyn Backend>) -> Verdict {
    let fails = Arc::new(AtomicBool::new(true));
    let probe_fails = Arc::clone(&fails);
    let probe =
        move || assert!(!probe_fails.load(Ordering::SeqCst), "this panic is part of the check");
    let mut toy = pipeline(backend, 2, Always, probe)?;
    let before = parameters(&mut toy)?;
    let (x, y) = batch(0);
    if toy.step(x, y).is_ok() {
        return Err("a step with a layer that panics returned no error".to_owned());
    }
    if bits(&parameters(&mut toy)?) != bits(&before) {
        return Err("a failed step changed parameters".to_owned());
    }
    fails.store(false, Ordering::SeqCst);
    compare(&train(toy)?, &trained_on_flex()?, backend)
}

/// Compares two trainings within the precision of a backend.
fn compare(found: &Trained, expected: &Trained, backend: &Arc<dyn Backend>) -> Verdict {
    let precision = backend.precision();
    for (path, value) in &expected.initial {
        let found = found.initial.get(path);
        if found.is_none_or(|found| found.as_bytes() != value.as_bytes()) {
            return Err(format!(
                "`{path}` isn't at first what it is on the host, or what was read of it changed \
                 later"
            ));
        }
    }
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        let difference = (found - expected).abs() / expected.abs();
        if difference.is_nan() || difference > precision {
            return Err(format!("a loss is {found}, on Flex {expected}: {difference:.1e} apart"));
        }
    }
    let values = [
        ("the gradient", &found.gradients, &expected.gradients),
        ("the parameters after training", &found.parameters, &expected.parameters),
    ];
    for (what, found, expected) in values {
        let difference = relative_difference(found, expected)?;
        if difference.is_nan() || difference > precision {
            return Err(format!(
                "{what}: {difference:.1e} away from Flex's, allowed is {precision:.1e}"
            ));
        }
    }
    Ok(Outcome::Kept)
}

/// Returns the norm of the difference, divided by the norm of what is expected.
///
/// It is that of everything together: the gradient of a single parameter may be nothing but
/// rounding.
fn relative_difference(found: &Values, expected: &Values) -> Result<f64, String> {
    if !found.keys().eq(expected.keys()) {
        return Err(format!("{:?} and not {:?} exist", found.keys(), expected.keys()));
    }
    let flat = |values: &Values| -> Vec<f64> {
        values.values().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()).collect()
    };
    let (found, expected) = (flat(found), flat(expected));
    let distance: f64 = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = expected.iter().map(|b| b * b).sum();
    Ok((distance / norm).sqrt())
}

/// Returns the bytes of the values, by path.
fn bits(values: &Values) -> Vec<(&String, Vec<u8>)> {
    values.iter().map(|(path, data)| (path, data.as_bytes().to_vec())).collect()
}
