//! Compiles and tests crates outside the workspace that bring their own schedule, partitioner and backend,
//! as a user's would.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn schedules_partitioners_and_backends_can_come_from_elsewhere() {
    // Cargo runs tests in their package's folder.
    let here = std::env::current_dir().expect("a folder");
    let downstream = here.join("tests/downstream");
    // The same versions as ours, so that builds are shared; cargo drops what isn't needed.
    std::fs::copy(here.join("../../Cargo.lock"), downstream.join("Cargo.lock"))
        .expect("the lock file");
    let release = (!cfg!(debug_assertions)).then_some("--release");
    // And the same features, so that Burn isn't compiled a second time.
    let features = [
        ("my-training/cuda", cfg!(feature = "cuda")),
        ("my-training/tch", cfg!(feature = "tch")),
        ("my-training/wgpu", cfg!(feature = "wgpu")),
    ];
    let features = features.into_iter().filter(|(_, on)| *on);
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo told this program of its package: build scripts that look at it would run again.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    let output = cargo
        .args(["test", "--tests", "--offline"])
        .args(features.flat_map(|(feature, _)| ["--features", feature]))
        .args(release)
        .arg("--target-dir")
        .arg(target())
        .current_dir(&downstream)
        .output()
        .expect("cargo starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let expected = [
        "keeps_no_more_micro_batches_than_there_are_ranks",
        "my_backend_keeps_the_contract",
        "training_gives_the_same_bits",
    ];
    for test in expected {
        assert!(stdout.contains(&format!("test {test} ... ok")), "{stdout}");
    }
}

/// The target directory that this test was built in.
fn target() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_path_buf()
}
