//! Compiles and tests crates outside the workspace that bring their own schedule and partitioner, as
//! a user's would.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn schedules_and_partitioners_can_come_from_elsewhere() {
    // Cargo runs tests in their package's folder.
    let here = std::env::current_dir().expect("a folder");
    let downstream = here.join("tests/downstream");
    // The same versions as ours, so that builds are shared; cargo drops what isn't needed.
    std::fs::copy(here.join("../../Cargo.lock"), downstream.join("Cargo.lock"))
        .expect("the lock file");
    let release = (!cfg!(debug_assertions)).then_some("--release");
    let output = Command::new(env!("CARGO"))
        .args(["test", "--tests", "--offline"])
        .args(release)
        .arg("--target-dir")
        .arg(target())
        .current_dir(&downstream)
        .output()
        .expect("cargo starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    for test in ["keeps_no_more_micro_batches_than_there_are_ranks", "training_gives_the_same_bits"]
    {
        assert!(stdout.contains(&format!("test {test} ... ok")), "{stdout}");
    }
}

/// The target directory that this test was built in.
fn target() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_path_buf()
}
