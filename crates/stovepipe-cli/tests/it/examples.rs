//! Every example of every help text works.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::text;
use crate::tuning::profile;

/// The commands with examples.
const COMMANDS: [&str; 8] =
    ["plan", "check", "simulate", "compare", "sweep", "partition", "tune", "completions"];

/// The commands below "Examples:" in a help text; in that of the whole they stand behind questions.
fn examples(help: &str) -> Vec<&str> {
    let lines = help.lines().filter_map(|line| line.find("stovepipe ").map(|at| &line[at..]));
    lines.filter(|line| !line.contains(['<', '[', '`'])).collect()
}

/// Runs an example in a folder. A `>` writes its output to a file.
#[track_caller]
fn run(example: &str, folder: &Path) {
    let (command, target) = match example.split_once(" > ") {
        Some((command, target)) => (command, Some(target)),
        None => (example, None),
    };
    let output = Command::new(env!("CARGO_BIN_EXE_stovepipe"))
        .args(command.split_whitespace().skip(1))
        .current_dir(folder)
        .output()
        .expect("the command starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !output.stdout.is_empty(), "{example}: {error}");
    if let Some(target) = target {
        std::fs::write(folder.join(target), output.stdout).expect("a scratch file");
    }
}

#[test]
fn every_example_of_the_help_works() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("examples");
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    let profile = profile("examples-profile.json", 4);
    std::fs::copy(profile, folder.join("profile.json")).expect("a scratch file");
    for command in COMMANDS {
        let help = text(&format!("{command} --help"));
        let (_, after) = help.split_once("\nExamples:\n").expect(command);
        let examples = examples(after);
        assert!(examples.iter().any(|example| example.contains(command)), "{command}: {after}");
        examples.iter().for_each(|example| run(example, &folder));
    }
    let all = text("--help");
    assert!(examples(&all).len() >= 6, "{all}");
    examples(&all).iter().for_each(|example| run(example, &folder));
}
