//! `cargo xtask test`: which tests run on which backends and transports.

use anyhow::{Result, bail};

use crate::Transport;
use crate::backend::{Backend, EVERYTHING, has_nvidia};
use crate::lint::WITHOUT_BURN;
use crate::setup::Setup;
use crate::shell::{Run, cargo};

/// Cargo's tests in a profile. What fails keeps no other test program from running.
fn tests(profile: &str) -> Run {
    cargo(["test", "--locked", "--no-fail-fast", profile])
}

/// The profile whose build of Burn the examples and benchmarks share.
const RELEASE: &str = "--release";
/// The profile for what has little to compute and much to compile.
const QUICK: &str = "--profile=quick";

/// Those of a backend; of Flex all that need only Rust.
pub(crate) fn backend(backend: Backend, filter: &[String]) -> Result<()> {
    backend.require()?;
    if backend == Backend::Flex {
        return tests(RELEASE).args(["--"]).args(filter).run();
    }
    let lacks = match backend {
        Backend::Cuda | Backend::TchCuda if !has_nvidia() => Some("NVIDIA device"),
        Backend::TchMps if !cfg!(target_os = "macos") => Some("Mac"),
        _ => None,
    };
    if let Some(lacks) = lacks {
        let name = backend.name();
        eprintln!("this is no machine with {name} (no {lacks}): training on it is NOT CHECKED");
    }
    if backend != Backend::Cuda || has_nvidia() {
        example(&backend.built())?;
    }
    tests(QUICK).args(backend.tested()).args(["--"]).args(filter).run()
}

/// Builds the example that a test starts: tests that are named don't do that.
fn example(built: &[&str]) -> Result<()> {
    cargo(["build", "--locked", QUICK, "--example", "char-lm"]).args(built).run()
}

/// Those of a transport.
pub(crate) fn transport(transport: Transport, filter: &[String]) -> Result<()> {
    tests(RELEASE).args(["--package", transport.package()]).run()?;
    let jobs = tests(RELEASE).args(["--features", transport.feature(), "--test", "jobs", "--"]);
    jobs.args(filter).run()
}

/// All of them, with whatever they need installed first.
pub(crate) fn all(filter: &[String]) -> Result<()> {
    let setting_up = Setup::all_meanwhile()?;
    let default = backend(Backend::Flex, filter);
    setting_up.wait()?;
    both(default, others(filter))
}

/// Those that need more than Rust: of transports, and of all backends in one build. The build uses
/// the cores that processes which start and wait for each other leave.
pub(crate) fn others(filter: &[String]) -> Result<()> {
    let building = backends().args(["--no-run"]).meanwhile()?;
    let transport = transport(Transport::Mpi, filter);
    let built = building.wait().and_then(|()| example(&together()));
    let run = |tests: Run| tests.args(["--"]).args(filter).run();
    let tested = built.and_then(|()| both(run(backends()), run(documentation())));
    both(transport, tested)
}

/// The test programs of backends.
fn backends() -> Run {
    let programs = ["tch", "wgpu", "cuda", "backends", "char_lm"];
    let tests = tests(QUICK).args(together()).args(programs.iter().flat_map(|p| ["--test", p]));
    // Backends that must be there, software renderers included.
    tests.env("STOVEPIPE_BACKENDS", "flex,wgpu,tch")
}

/// The examples in the documentation that differ with backends: the others were tested with Flex.
fn documentation() -> Run {
    let same = ["stovepipe-burn", "stovepipe-flex", "stovepipe-mpi", "stovepipe-testkit"];
    let excluded = same.iter().flat_map(|name| ["--exclude", name]);
    tests(QUICK).args(together()).args(excluded).args(["--doc"])
}

/// Cargo's arguments for everything that knows Burn, on all backends.
fn together() -> Vec<&'static str> {
    let excluded = WITHOUT_BURN.iter().filter(|name| **name != "stovepipe-mpi");
    let excluded = excluded.chain(&["xtask"]).flat_map(|name| ["--exclude", name]);
    ["--workspace", "--features", EVERYTHING].into_iter().chain(excluded).collect()
}

/// The first failure doesn't hide the second.
pub(crate) fn both(one: Result<()>, other: Result<()>) -> Result<()> {
    match (one, other) {
        (Err(one), Err(other)) => bail!("{one}\n{other}"),
        (one, other) => one.and(other),
    }
}
