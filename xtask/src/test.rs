//! `cargo xtask test`: which tests run on which backends and transports.

use anyhow::{Result, bail};

use crate::Transport;
use crate::backend::{Backend, EVERYTHING, has_nvidia};
use crate::lint::WITHOUT_BURN;
use crate::setup::Setup;
use crate::shell::{Run, cargo};

/// Cargo's tests in the release profile, whose build of Burn the examples and benchmarks share.
/// What fails keeps no other test program from running.
fn tests(profile: &str) -> Run {
    cargo(["test", "--locked", "--no-fail-fast", profile])
}

/// Those of a backend; of Flex all that need only Rust.
pub(crate) fn backend(backend: Backend, filter: &[String]) -> Result<()> {
    backend.require()?;
    let is_idle = backend == Backend::Cuda && !has_nvidia();
    let lacks = match backend {
        Backend::Cuda | Backend::TchCuda if !has_nvidia() => Some("NVIDIA device"),
        Backend::TchMps if !cfg!(target_os = "macos") => Some("Mac"),
        _ => None,
    };
    if let Some(lacks) = lacks {
        let name = backend.name();
        eprintln!("this is no machine with {name} (no {lacks}): training on it is NOT CHECKED");
    }
    if !is_idle && backend != Backend::Flex {
        // Tests that are named don't build the programs that they start.
        let build = cargo(["build", "--locked", "--release", "--example", "char-lm"]);
        build.args(backend.built()).run()?;
    }
    let profile = if is_idle { "--profile=dev" } else { "--release" };
    tests(profile).args(backend.tested()).args(["--"]).args(filter).run()
}

/// Those of a transport.
pub(crate) fn transport(transport: Transport, filter: &[String]) -> Result<()> {
    tests("--release").args(["--package", transport.package()]).run()?;
    let jobs = tests("--release").args(["--features", transport.feature(), "--test", "jobs", "--"]);
    jobs.args(filter).run()
}

/// All of them, with whatever they need installed first.
pub(crate) fn all(filter: &[String]) -> Result<()> {
    let setting_up = Setup::all_meanwhile()?;
    let alone = backend(Backend::Flex, filter);
    setting_up.wait()?;
    both(alone, together(filter))
}

/// Those that Burn has a part in, once more with every backend and transport in one build.
pub(crate) fn together(filter: &[String]) -> Result<()> {
    let excluded = WITHOUT_BURN.iter().filter(|name| **name != "stovepipe-mpi");
    let excluded = excluded.chain(&["xtask"]).flat_map(|name| ["--exclude", name]);
    tests("--release")
        .args(["--workspace", "--features", EVERYTHING])
        .args(excluded)
        // What must be there, software renderers included.
        .env("STOVEPIPE_BACKENDS", "flex,wgpu,tch")
        .args(["--"])
        .args(filter)
        .run()
}

/// The first failure doesn't hide the second.
pub(crate) fn both(one: Result<()>, other: Result<()>) -> Result<()> {
    match (one, other) {
        (Err(one), Err(other)) => bail!("{one}\n{other}"),
        (one, other) => one.and(other),
    }
}
