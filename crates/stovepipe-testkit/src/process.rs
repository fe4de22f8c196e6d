//! Tests that look at the whole process, where others run beside them.

use std::process::Command;

/// Tells a process that it is the one that [`alone`] started.
const ALONE: &str = "STOVEPIPE_TEST_ALONE";

/// Runs the test of this name, which calls this with its body, in a process of its own: its threads
/// and statics are those of this test and no other.
///
/// # Panics
///
/// If the test fails there, or isn't found under this name.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let myself = std::env::current_exe().expect("this program");
    let mut command = Command::new(myself);
    let output = command.args(["--exact", test]).env(ALONE, "1").output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && said.contains(" 1 passed"), "{said}");
}
