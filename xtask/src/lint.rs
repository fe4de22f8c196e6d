//! `cargo xtask lint`: format, house rules, dependencies, clippy and documentation.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::backend::EVERYTHING;
use crate::docs;
use crate::packages;
use crate::setup::Setup;
use crate::shell::cargo;
use crate::tidy;

/// The crates of the workspace that each crate may depend on. Dependencies point down: nothing
/// lower knows anything higher, and only what is on top of `stovepipe-burn` knows Burn.
const MAY_KNOW: [(&str, &[&str]); 15] = [
    ("stovepipe-schedule", &[]),
    ("stovepipe-partition", &[]),
    ("stovepipe-transport", &[]),
    ("stovepipe-checkpoint", &["stovepipe-schedule"]),
    ("stovepipe-runtime", &["stovepipe-schedule", "stovepipe-transport"]),
    (
        "stovepipe-burn",
        &[
            "stovepipe-checkpoint",
            "stovepipe-partition",
            "stovepipe-runtime",
            "stovepipe-schedule",
            "stovepipe-transport",
            "stovepipe-tune",
        ],
    ),
    ("stovepipe-cuda", &["stovepipe-burn"]),
    ("stovepipe-flex", &["stovepipe-burn"]),
    ("stovepipe-emulate", &["stovepipe-runtime", "stovepipe-schedule"]),
    ("stovepipe-mpi", &["stovepipe-transport"]),
    ("stovepipe-tch", &["stovepipe-burn"]),
    ("stovepipe-wgpu", &["stovepipe-burn"]),
    ("stovepipe-tune", &["stovepipe-checkpoint", "stovepipe-partition", "stovepipe-schedule"]),
    (
        "stovepipe-cli",
        &["stovepipe-checkpoint", "stovepipe-partition", "stovepipe-schedule", "stovepipe-tune"],
    ),
    (
        "stovepipe",
        &[
            "stovepipe-burn",
            "stovepipe-checkpoint",
            "stovepipe-flex",
            "stovepipe-partition",
            "stovepipe-runtime",
            "stovepipe-schedule",
            "stovepipe-transport",
            "stovepipe-tune",
        ],
    ),
];

/// Crates that must not pull in Burn, however indirectly.
pub(crate) const WITHOUT_BURN: [&str; 9] = [
    "stovepipe-schedule",
    "stovepipe-partition",
    "stovepipe-checkpoint",
    "stovepipe-transport",
    "stovepipe-runtime",
    "stovepipe-emulate",
    "stovepipe-mpi",
    "stovepipe-tune",
    "stovepipe-cli",
];

/// Checks what needs only Rust, or with `all` every crate and feature.
pub(crate) fn run(all: bool) -> Result<()> {
    let setting_up = all.then(Setup::all_meanwhile).transpose()?;
    read()?;
    match setting_up {
        Some(setting_up) => {
            setting_up.wait()?;
            compiled(&["--workspace", "--features", EVERYTHING])
        }
        None => {
            compiled(&[])?;
            eprintln!("what needs wgpu, tch, cuda or mpi is NOT CHECKED: `--all` does that too");
            Ok(())
        }
    }
}

/// Checks what is only read, not compiled.
fn read() -> Result<()> {
    cargo(["fmt", "--all", "--check"]).run()?;
    tidy::check()?;
    dependencies()?;
    docs::check()?;
    packages::check()
}

/// Compiles the crates that `which` selects.
pub(crate) fn compiled(which: &[&str]) -> Result<()> {
    let clippy = cargo(["clippy", "--locked", "--profile=quick", "--all-targets"]).args(which);
    clippy.args(["--", "--deny", "warnings"]).run()?;
    let doc = cargo(["doc", "--locked", "--profile=quick", "--no-deps"]).args(which);
    doc.env("RUSTDOCFLAGS", "--deny warnings").run()
}

/// Checks the direction of dependencies with `cargo tree`.
fn dependencies() -> Result<()> {
    for (name, allowed) in MAY_KNOW {
        let direct = tree(name, &["--depth", "1"])?;
        let known: BTreeSet<&str> = direct
            .iter()
            .map(String::as_str)
            .filter(|d| d.starts_with("stovepipe") && *d != name)
            .collect();
        if let Some(stray) = known.iter().find(|known| !allowed.contains(known)) {
            bail!("{name} depends on {stray}, which it must not know");
        }
    }
    for name in WITHOUT_BURN {
        if let Some(burn) = tree(name, &[])?.iter().find(|d| d.starts_with("burn")) {
            bail!("{name} pulls in {burn}, but must not know Burn");
        }
    }
    eprintln!("dependencies point down");
    Ok(())
}

/// Names of the crates in a crate's dependency tree.
fn tree(name: &str, arguments: &[&str]) -> Result<Vec<String>> {
    let tree = cargo([
        "tree",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--package",
        name,
    ]);
    let lines = tree.args(arguments).read()?;
    Ok(lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}
