//! Runs the command as a user does.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) fn stovepipe(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stovepipe"))
        .args(arguments.split_whitespace())
        .output()
        .expect("the command starts")
}

/// The output of a command that must succeed.
#[track_caller]
pub(crate) fn text(arguments: &str) -> String {
    let output = stovepipe(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
pub(crate) fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(arguments)).expect("json")
}

/// The message of a command that must fail.
#[track_caller]
pub(crate) fn refused(arguments: &str) -> String {
    let output = stovepipe(arguments);
    assert!(!output.status.success(), "{arguments} succeeded");
    assert!(output.stdout.is_empty(), "{arguments} printed something");
    String::from_utf8(output.stderr).expect("text")
}

pub(crate) fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("a scratch file");
    path
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

pub(crate) fn close(found: &Value, expected: f64) -> bool {
    (number(found) - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}
