//! The example trains on every backend that was compiled in, and alike.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use stovepipe::prelude::*;
use stovepipe::{backend_named, backends, conformance};

#[derive(Deserialize)]
struct Report {
    training: Vec<Point>,
    validation_loss: f64,
}

#[derive(Deserialize)]
struct Point {
    loss: f64,
}

#[test]
fn losses_are_those_of_flex() -> Result<()> {
    let expected = losses("flex")?;
    ensure!(expected.len() == 4 && expected[0] != expected[2], "it trains: {expected:?}");
    for name in backends().iter().map(|named| named.name) {
        let backend = backend_named(name, 1)?;
        if let Err(error) = backend.devices() {
            conformance::tell_unchecked(name, &error);
            continue;
        }
        let found = losses(name)?;
        ensure!(found.len() == expected.len(), "{name}: {found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            let apart = (found - expected).abs() / expected;
            ensure!(apart <= backend.precision(), "{name}: {found} instead of {expected}");
        }
    }
    Ok(())
}

/// Of three training steps, and of the validation after them.
fn losses(backend: &str) -> Result<Vec<f64>> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("char-lm-{backend}"));
    let sizes = ["--steps=3", "--dim=16", "--layers=2", "--heads=2", "--seq=16", "--batch=4"];
    // A text that doesn't change with the repository.
    let text = out.with_extension("txt");
    std::fs::write(&text, "how much wood would a woodchuck chuck? ".repeat(40))?;
    let output = Command::new(example()?)
        .args(sizes)
        .args(["--micro-batches=2", "--backend", backend])
        .arg("--text")
        .arg(&text)
        .arg("--out")
        .arg(&out)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{backend}: {said}");
    let report: Report = serde_json::from_slice(&std::fs::read(out.join("report.json"))?)?;
    let training = report.training.iter().map(|point| point.loss);
    Ok(training.chain([report.validation_loss]).collect())
}

/// Cargo builds it before it runs tests, beside them.
fn example() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.ancestors().nth(2).context("a folder above")?;
    let example = folder.join("examples/char-lm").with_extension(std::env::consts::EXE_EXTENSION);
    ensure!(example.exists(), "run `cargo build --release --example char-lm` first");
    Ok(example)
}
