//! How much of a second processor there really is: two virtual cores may be less than two.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use stovepipe_benches::{Model, On};

/// The work that two independent one-stage processes get done at once, divided by that of one
/// alone.
pub(crate) fn two_against_one(on: &On, model: &Model, steps: usize) -> Result<f64> {
    let alone = finish(start(on, model, steps)?)?;
    let pair = [start(on, model, steps)?, start(on, model, steps)?];
    let together = pair.into_iter().map(finish).collect::<Result<Vec<_>>>()?;
    Ok(together.into_iter().map(|step| alone / step).sum())
}

fn start(on: &On, model: &Model, steps: usize) -> Result<Child> {
    let program = std::env::current_exe()?;
    let arguments = model.arguments();
    Command::new(program)
        .arg("--calibrate")
        .args(["--steps", &steps.to_string(), "--backend", &on.name])
        .args(["--threads", &on.threads.to_string()])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("the calibration can't be started")
}

fn finish(child: Child) -> Result<f64> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the calibration failed: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().with_context(|| format!("the calibration printed `{text}`"))
}
