//! House rules that no other tool checks: every source file says what it does, and none is a tome.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use walkdir::{DirEntry, WalkDir};

use crate::shell::root;

/// A longer file wants to be two.
const MAX_LINES: usize = 600;

/// Checks every Rust file of the workspace.
pub(crate) fn check() -> Result<()> {
    let files = sources(&root())?;
    let mut problems = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        problems.extend(complaint(&text).map(|what| format!("{}: {what}", file.display())));
    }
    if problems.is_empty() {
        eprintln!("{} files are tidy", files.len());
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let skipped = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() > 0 && (name == "target" || name.starts_with('.'))
    };
    let mut files = Vec::new();
    for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(|e| !skipped(e)) {
        let path = entry?.into_path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

fn complaint(text: &str) -> Option<String> {
    let lines = text.lines().count();
    if !text.starts_with("//!") {
        Some("begin with `//!` and say what the file does".to_owned())
    } else if lines > MAX_LINES {
        Some(format!("{lines} lines; cut it into files of at most {MAX_LINES}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_it_is_for() {
        assert_eq!(complaint("//! Says what it does.\n"), None);
        assert!(complaint("fn main() {}\n").is_some());
        assert!(complaint(&format!("//! Long.\n{}", "\n".repeat(MAX_LINES))).is_some());
    }

    #[test]
    fn the_workspace_is_tidy() {
        assert!(sources(&root()).is_ok_and(|files| files.len() > 10));
        check().expect("tidy");
    }
}
