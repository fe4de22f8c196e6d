//! The example trains on every backend that was compiled in, and alike; and it takes every
//! schedule, policy, partitioner and backend that there is.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use stovepipe::partition::partitioners;
use stovepipe::prelude::*;
use stovepipe::recompute::policies;
use stovepipe::schedule::schedules;
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
    let output = run(&out, &["--steps=3", "--layers=2", "--backend", backend])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{backend}: {said}");
    let report: Report = serde_json::from_slice(&std::fs::read(out.join("report.json"))?)?;
    let training = report.training.iter().map(|point| point.loss);
    Ok(training.chain([report.validation_loss]).collect())
}

/// A choice that the example offers: the argument, how its help lists it, and one that is asked
/// for.
type Choice = (&'static str, &'static str, &'static str);

#[test]
fn every_choice_there_is_is_listed_and_taken() -> Result<()> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("char-lm-choices");
    let help = run(&out, &["--help"])?;
    let help = String::from_utf8_lossy(&help.stdout);
    let registries: [Vec<Choice>; 4] = [
        schedules().iter().map(|s| ("--schedule", s.name, s.name)).collect(),
        policies().iter().map(|p| ("--checkpoint", p.form, p.example)).collect(),
        partitioners().iter().map(|p| ("--partition", p.form, p.example)).collect(),
        backends().iter().map(|b| ("--backend", b.name, b.name)).collect(),
    ];
    for registry in registries {
        let argument = registry.first().context("an empty registry")?.0;
        ensure!(ask(&out, argument, "abacus")?.is_none(), "{argument} takes anything");
        let mut trained = 0;
        for (argument, listed, asked) in registry {
            ensure!(help.contains(listed), "--help doesn't list {argument} {listed}");
            let output = ask(&out, argument, asked)?;
            let output = output.with_context(|| format!("{argument} doesn't take {asked}"))?;
            trained += usize::from(output.status.success());
        }
        ensure!(trained > 0, "none of {argument} trains");
    }
    Ok(())
}

/// Runs the example with this choice; none if it says that it knows no such thing. It may well know
/// one that it can't train with here: a schedule that splits backwards, a backend without a device.
fn ask(out: &Path, argument: &str, asked: &str) -> Result<Option<Output>> {
    let output = run(out, &["--steps=0", "--layers=3", argument, asked])?;
    let said = String::from_utf8_lossy(&output.stderr);
    let kinds = ["schedule", "checkpoint policy", "partitioner", "backend"];
    let unknown = kinds.iter().any(|kind| said.contains(&format!("there is no {kind} `")));
    Ok((!unknown && !said.contains("write it like")).then_some(output))
}

/// Runs the example with a small model, on a text that doesn't change with the repository.
fn run(out: &Path, arguments: &[&str]) -> Result<Output> {
    let text = out.with_extension("txt");
    std::fs::write(&text, "how much wood would a woodchuck chuck? ".repeat(40))?;
    let mut command = Command::new(example()?);
    command.args(["--dim=16", "--heads=2", "--seq=16", "--batch=4", "--micro-batches=2"]);
    Ok(command.args(arguments).arg("--text").arg(&text).arg("--out").arg(out).output()?)
}

/// Cargo builds it before it runs tests, beside them.
fn example() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.ancestors().nth(2).context("a folder above")?;
    let example = folder.join("examples/char-lm").with_extension(std::env::consts::EXE_EXTENSION);
    ensure!(example.exists(), "run `cargo build --release --example char-lm` first");
    Ok(example)
}
