//! Compiles and tests crates outside the workspace that bring their own schedule, policy,
//! partitioner, transport and backend, as a user's would. Finds their code in the pages that show
//! it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

#[test]
fn every_choice_can_come_from_elsewhere() {
    // The same features as ours, so that Burn isn't compiled a second time.
    let features = [
        ("my-training/cuda", cfg!(feature = "cuda")),
        ("my-training/tch", cfg!(feature = "tch")),
        ("my-training/wgpu", cfg!(feature = "wgpu")),
    ];
    let features = features.into_iter().filter(|(_, on)| *on);
    let features = features.flat_map(|(feature, _)| ["--features", feature]);
    let said = cargo(["test", "--tests"].into_iter().chain(features));
    let expected = [
        "cuts_into_as_many_parts_as_asked",
        "keeps_no_more_micro_batches_than_there_are_ranks",
        "my_backend_keeps_the_contract",
        "my_transport_keeps_the_contract",
        "recomputes_what_would_wait_longest",
        "training_gives_the_same_bits",
    ];
    for test in expected {
        assert!(said.contains(&format!("test {test} ... ok")), "{said}");
    }
}

#[test]
fn a_backend_needs_stovepipe_burn_alone() {
    // Without the features that other crates turn on.
    cargo(["check", "--tests", "--package", "my-backend"]);
}

#[test]
fn how_tos_show_the_code_that_is_tested() {
    let here = std::env::current_dir().expect("a folder");
    let (pages, crates) = (here.join("../../docs/how-to"), here.join("tests/downstream"));
    for what in ["schedule", "policy", "partitioner", "transport", "backend"] {
        let page = pages.join(what).with_extension("md");
        let page = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{page:?}: {e}"));
        let code = crates.join(format!("my-{what}"));
        let sources = [code.join("src"), code.join("tests")].map(|folder| sources(&folder));
        let sources: Vec<String> = sources.into_iter().flatten().collect();
        let blocks: Vec<&str> = page
            .split("```rust\n")
            .skip(1)
            .map(|rest| rest.split("```").next().unwrap_or(rest))
            .collect();
        assert!(!blocks.is_empty(), "docs/how-to/{what}.md shows no code");
        for block in blocks {
            let found = sources.iter().any(|source| source.contains(block));
            assert!(found, "docs/how-to/{what}.md shows what isn't in my-{what}:\n{block}");
        }
    }
}

/// The texts of a folder's files.
fn sources(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
}

/// Runs cargo and returns what it printed.
fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    // They have one lock file.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Cargo runs tests in their package's folder.
    let here = std::env::current_dir().expect("a folder");
    let downstream = here.join("tests/downstream");
    // The same versions as ours, so that builds are shared; cargo drops what isn't needed.
    std::fs::copy(here.join("../../Cargo.lock"), downstream.join("Cargo.lock"))
        .expect("the lock file");
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo told this program of its package: build scripts that look at it would run again.
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if shown.starts_with("CARGO_PKG_") || shown.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let release = (!cfg!(debug_assertions)).then_some("--release");
    let output = cargo
        .args(arguments)
        .arg("--offline")
        .args(release)
        .arg("--target-dir")
        .arg(target())
        .current_dir(&downstream)
        .output()
        .expect("cargo starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

/// The target directory that this test was built in.
fn target() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_path_buf()
}
