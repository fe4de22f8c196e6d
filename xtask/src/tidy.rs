//! House rules that no other tool checks. Each has a module of its own, with the reason for it;
//! here stand the exceptions.

mod documents;
mod houses;
mod modules;
mod prose;
mod reader;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use walkdir::{DirEntry, WalkDir};

use crate::floors::FLOORS;
use crate::shell::root;
pub(crate) use crate::tidy::houses::Floors;
use crate::tidy::modules::Modules;

/// A longer file wants to be two: what one can hold in mind.
const MAX_LINES: usize = 450;

/// Files that are longer, and why.
const LONG: [(&str, &str); 0] = [];

/// Documents that tell of the past, with the names things had.
const HISTORY: &str = "CHANGELOG.md";

/// Checks every file of the workspace.
pub(crate) fn check() -> Result<()> {
    let files = texts(&root())?;
    let problems = complaints(&files);
    if problems.is_empty() {
        eprintln!("{} files are tidy", files.len());
        return Ok(());
    }
    bail!("{}\n{} things are untidy", problems.join("\n"), problems.len())
}

/// The texts of the files that are written by hand, by path from the workspace's root.
fn texts(root: &Path) -> Result<BTreeMap<String, String>> {
    let skipped = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        let is_hidden = name.starts_with('.') && name != ".cargo" && name != ".ci";
        entry.depth() > 0 && (name == "target" || is_hidden)
    };
    let mut texts = BTreeMap::new();
    for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(|e| !skipped(e)) {
        let entry = entry?;
        let path = entry.path();
        if !entry.file_type().is_file() {
            continue;
        }
        let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        // What isn't text is only known to be there.
        let text = std::fs::read(path).with_context(|| path.display().to_string())?;
        texts.insert(name, String::from_utf8(text).unwrap_or_default());
    }
    Ok(texts)
}

fn complaints(files: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<String> = files.keys().cloned().collect();
    let mut problems = Vec::new();
    for (name, text) in files {
        let found = match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("rs") => {
                let mut found: Vec<String> = head(text).into_iter().collect();
                found.extend(length(name, text, &LONG));
                found.extend(prose::long_comments(text, "//"));
                found.extend(prose::summaries(text));
                found.extend(prose::long_doc_sentences(text));
                // The rule itself names them.
                if !name.ends_with("tidy/words.rs") {
                    found.extend(words::in_code(text));
                }
                found
            }
            Some("toml") => prose::long_comments(text, "#"),
            Some("md") if name != HISTORY => {
                let mut found = prose::long_lines(text);
                found.extend(prose::long_sentences(text.lines()));
                found.extend(documents::complaints(name, text, &names));
                if name != GLOSSARY {
                    found.extend(words::in_prose(text));
                }
                found
            }
            _ => Vec::new(),
        };
        problems.extend(found.into_iter().map(|what| format!("{name}:{what}")));
    }
    problems.extend(crates(files));
    problems
}

/// Lists the misleading words.
const GLOSSARY: &str = "docs/glossary.md";

/// Every file says what it does before it does it.
fn head(text: &str) -> Option<String> {
    (!text.starts_with("//!")).then(|| "1: begin with `//!` and say what the file does".to_owned())
}

fn length(name: &str, text: &str, long: &[(&str, &str)]) -> Option<String> {
    let lines = text.lines().count();
    let is_listed = long.iter().any(|(listed, _)| *listed == name);
    match (lines > MAX_LINES, is_listed) {
        (true, false) => {
            Some(format!("{lines}: lines; cut it into files of at most {MAX_LINES}, or list it"))
        }
        (false, true) => Some(format!("{lines}: lines; it needs no place on the list any more")),
        _ => None,
    }
}

/// Complains of the crates as houses.
fn crates(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut problems = Vec::new();
    let found = files.keys().filter_map(|file| file.strip_prefix("crates/")?.split_once("/src/"));
    let found: BTreeSet<&str> = found.map(|(name, _)| name).filter(|n| !n.contains('/')).collect();
    for name in found {
        let Some((_, floors)) = FLOORS.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("crates/{name}: has no table of floors"));
            continue;
        };
        let source = format!("crates/{name}/src/");
        let own: BTreeMap<String, String> = files
            .iter()
            .filter_map(|(file, text)| Some((file.strip_prefix(&source)?.to_owned(), text.clone())))
            .collect();
        let root = if own.contains_key("lib.rs") { "lib.rs" } else { "main.rs" };
        match Modules::read(root, &own) {
            Ok(modules) => {
                let found = houses::complaints(&modules, floors);
                problems.extend(found.into_iter().map(|what| format!("{source}{what}")));
            }
            Err(error) => problems.push(format!("{source}: {error:#}")),
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_head_and_an_end() {
        assert_eq!(head("//! Says what it does.\n"), None);
        assert!(head("fn main() {}\n").is_some());
        let long = "\n".repeat(MAX_LINES + 1);
        assert!(length("a.rs", &long, &[]).is_some());
        assert_eq!(length("a.rs", &long, &[("a.rs", "it is a table")]), None);
        assert_eq!(length("a.rs", &long[1..], &[]), None);
        assert!(length("a.rs", "", &[("a.rs", "it was a table")]).is_some());
    }

    #[test]
    fn rules_are_applied_to_their_files() {
        let long = "word ".repeat(40) + "end.";
        let files = [
            (
                "a.rs",
                format!("fn f() {{}}\n// {long}\n/// What it does.\nfn g() {{}}\n// In chunks.\n"),
            ),
            ("b.toml", format!("# {long}\n")),
            ("c.md", format!("{long}\n`gone.rs`, chunks\n")),
            ("crates/d/src/lib.rs", "//! Has no table.\n".to_owned()),
        ];
        let files = files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        let found = complaints(&files);
        let of = |file: &str| found.iter().filter(|found| found.starts_with(file)).count();
        assert_eq!(
            (of("a.rs"), of("b.toml"), of("c.md"), of("crates/d")),
            (4, 1, 4, 1),
            "{found:#?}"
        );
    }

    #[test]
    fn the_workspace_is_tidy() -> Result<()> {
        assert!(texts(&root())?.len() > 100);
        check()
    }
}
