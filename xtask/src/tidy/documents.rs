//! The rule for names of files in documents: a file that is named exists, and its name says which
//! one. A reader who follows a path to nowhere trusts the next one less.

use std::collections::BTreeSet;

/// Names of files that every package has.
const COMMON: [&str; 6] =
    ["Cargo.toml", "Cargo.lock", "lib.rs", "main.rs", "mod.rs", "rustfmt.toml"];
/// The endings of our own files' names.
const ENDINGS: [&str; 4] = [".rs", ".md", ".toml", ".py"];

/// Names in the document at `path` that lead nowhere, or to several of `files`, which have paths
/// from the root.
pub(super) fn complaints(path: &str, text: &str, files: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut is_code = false;
    // The crate that was named last: in its section, or in its row of a table, names are its own.
    let mut of = String::new();
    for (number, line) in text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        let mut say = |what: String| problems.push(format!("{}: {what}", number + 1));
        for code in line.split('`').skip(1).step_by(2) {
            let name = code.trim_start_matches("crates/").split('/').next().unwrap_or_default();
            let folder = format!("crates/{name}/");
            if !name.is_empty() && exists(&folder, files) {
                of = folder;
            }
            if let Some(problem) = named(code, files, &of) {
                say(problem);
            }
        }
        for link in line.split("](").skip(1) {
            let target = link.split([')', '#', ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !is_elsewhere && !exists(&relative(path, target), files) {
                say(format!("links to {target}, which isn't there"));
            }
        }
    }
    problems
}

/// Complains of a file's name in code marks, where the crate `of` was named before.
fn named(code: &str, files: &BTreeSet<String>, of: &str) -> Option<String> {
    let looks = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let is_file = ENDINGS.iter().any(|ending| code.ends_with(ending)) && code.len() > 3;
    let is_folder = code.contains('/') && code.ends_with('/');
    let is_name =
        code.chars().all(looks) && (is_file || is_folder) && !code.starts_with(['/', '.']);
    // Files that are built, or that the reader gives a name, and those that every package has.
    let is_free = code.starts_with("target/") || code.contains("NAME") || COMMON.contains(&code);
    let is_of_crate = !of.is_empty() && exists(&format!("{of}src/{code}"), files);
    if !is_name || is_free || exists(code, files) || is_of_crate {
        return None;
    }
    let end = format!("/{}", code.trim_end_matches('/'));
    let places: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| {
            if is_folder {
                file.find(&format!("{end}/")).map(|at| &file[..at + end.len()])
            } else {
                file.ends_with(&end).then_some(&**file)
            }
        })
        .collect();
    match places.len() {
        0 => Some(format!("names `{code}`, which isn't there")),
        1 => None,
        _ if places.iter().filter(|place| !of.is_empty() && place.starts_with(of)).count() == 1 => {
            None
        }
        _ => {
            let places: Vec<&str> = places.into_iter().take(3).collect();
            Some(format!("names `{code}`, which may be any of {}", places.join(", ")))
        }
    }
}

/// Whether there is such a file, or a folder with files.
fn exists(path: &str, files: &BTreeSet<String>) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    files.contains(path)
        || files.range(folder.clone()..).next().is_some_and(|f| f.starts_with(&folder))
}

/// A link's target from the root.
fn relative(document: &str, target: &str) -> String {
    let mut path: Vec<&str> = document.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            ".." => {
                path.pop();
            }
            "." | "" => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let files = ["README.md", "docs/plans.md", "docs/how-to/plan.md", "crates/a/src/plan.rs"];
        let files = files.into_iter().chain(["crates/b/src/plan.rs", "crates/b/src/plan/grid.rs"]);
        complaints("docs/plans.md", text, &files.map(str::to_owned).collect())
    }

    #[test]
    fn names_lead_to_one_file() {
        let right = "`crates/a/src/plan.rs`, `plan/grid.rs`, `grid.rs`, `docs/how-to/`, `Cargo.toml`, \
                     `your/own.csv`, `plan.md`, `*.rs`, `stage/2`\n\
                     [a](how-to/plan.md#steps) [b](../README.md) [c](https://x.org/y.md) [d](#here) [e](how-to)\n\
                     ```\n`no.rs` [f](no.md)\n```\n";
        assert_eq!(found(right), [""; 0]);
        assert_eq!(
            found("`src/plan.rs`"),
            [
                "1: names `src/plan.rs`, which may be any of crates/a/src/plan.rs, crates/b/src/plan.rs"
            ]
        );
        assert_eq!(
            found("`b` has rooms:\n`src/plan.rs`, `plan.rs`, `crates/NAME/src/x.rs`"),
            [""; 0]
        );
        assert_eq!(found("x\n`gone.rs`"), ["2: names `gone.rs`, which isn't there"]);
        assert_eq!(found("`docs/gone/`"), ["1: names `docs/gone/`, which isn't there"]);
        assert_eq!(found("[a](plan.md)"), ["1: links to plan.md, which isn't there"]);
    }
}
