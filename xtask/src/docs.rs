//! `cargo xtask docs`: writes the tables and pictures of the documents that the code knows best. A
//! table stands between `<!-- table: NAME -->` and `<!-- end -->`; a picture is what the command
//! above it draws.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use stovepipe_checkpoint::policies;
use stovepipe_partition::partitioners;
use stovepipe_schedule::schedules;

use crate::setup::target;
use crate::shell::{cargo, root};

/// Documents with tables.
const WITH_TABLES: [&str; 5] = [
    "README.md",
    "docs/backends/names.md",
    "docs/planning.md",
    "docs/recomputation.md",
    "docs/schedules.md",
];
/// The document with the commands for pictures, and their folder.
const WITH_PICTURES: (&str, &str) = ("docs/schedules.md", "docs/schedules");

/// Writes all that differs.
pub(crate) fn write() -> Result<()> {
    for (path, text) in differences()? {
        fs::write(root().join(&path), text)?;
        eprintln!("{path}: written");
    }
    Ok(())
}

/// Complains of what differs.
pub(crate) fn check() -> Result<()> {
    let stale: Vec<String> = differences()?.into_iter().map(|(path, _)| path).collect();
    ensure!(stale.is_empty(), "{} differ from the code: run `cargo xtask docs`", stale.join(", "));
    eprintln!("tables and pictures of the documents are the code's");
    Ok(())
}

/// Files, by path from the root, that aren't as the code has them, and how they should be.
fn differences() -> Result<Vec<(String, String)>> {
    let read = |path: &str| fs::read_to_string(root().join(path)).with_context(|| path.to_owned());
    let mut files = Vec::new();
    for path in WITH_TABLES {
        files.push((path.to_owned(), with_tables(&read(path)?, table)?));
    }
    let (document, folder) = WITH_PICTURES;
    for command in commands(&read(document)?) {
        files.push(picture(&command, folder)?);
    }
    files.retain(|(path, text)| read(path).ok().as_ref() != Some(text));
    Ok(files)
}

/// A document with its tables made anew.
fn with_tables(document: &str, table: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut pieces = document.split("<!-- table: ");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once(" -->\n").context("a table's name has no end")?;
        let (_, rest) =
            rest.split_once("<!-- end -->").with_context(|| format!("{name} has no end"))?;
        write!(text, "<!-- table: {name} -->\n{}<!-- end -->{rest}", table(name)?)?;
    }
    Ok(text)
}

fn table(name: &str) -> Result<String> {
    Ok(match name {
        "schedules" => rows(
            ["name", "what it does"],
            schedules().iter().map(|s| [code(s.name), s.summary.into()]),
        ),
        "policies" => rows(
            ["name", "what it does"],
            policies().iter().map(|p| [code(p.form), p.summary.into()]),
        ),
        "partitioners" => rows(
            ["name", "what it does"],
            partitioners().iter().map(|p| [code(p.form), p.summary.into()]),
        ),
        "figures of schedules" => figures()?,
        "choices" => choices()?,
        "backends" => rows(["name", "feature", "what it does"], backends_of_facade()?.into_iter()),
        "features" => {
            let manifest = fs::read_to_string(root().join("crates/stovepipe/Cargo.toml"))?;
            rows(["feature", "what it does"], features(&manifest)?.into_iter())
        }
        _ => bail!("there is no table `{name}`"),
    })
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn rows<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rule = "---|".repeat(N);
    let rows = rows.map(|row| format!("| {} |\n", row.join(" | ")));
    format!("| {} |\n|{rule}\n{}", header.join(" | "), rows.collect::<String>())
}

/// All that is chosen by name, in a line for each kind.
fn choices() -> Result<String> {
    let names = |names: Vec<String>| names.join(", ");
    let planned = schedules().iter().map(|schedule| code(schedule.name)).collect();
    let recomputed = policies().iter().map(|policy| code(policy.form)).collect();
    let cut = partitioners().iter().map(|partitioner| code(partitioner.form)).collect();
    let computed = backends_of_facade()?.into_iter().map(|[name, ..]| name).collect();
    let kinds = [
        ["[schedules](docs/schedules.md)".to_owned(), names(planned)],
        ["[recomputation](docs/recomputation.md)".to_owned(), names(recomputed)],
        ["[partitioners](docs/planning.md)".to_owned(), names(cut)],
        ["[backends](docs/backends/names.md)".to_owned(), names(computed)],
    ];
    Ok(rows(["choice", "names"], kinds.into_iter()))
}

/// The program whose commands the documents show.
fn stovepipe(arguments: &[&str]) -> Result<String> {
    let run = ["run", "--quiet", "--profile=quick", "--package", "stovepipe-cli", "--"];
    cargo(run).args(arguments).read()
}

/// Every schedule at the shape that the document talks about.
fn figures() -> Result<String> {
    let shape = ["compare", "--ranks", "4", "--micro-batches", "8", "--json"];
    let found: Value = serde_json::from_str(&stovepipe(&shape)?)?;
    let found = found["schedules"].as_array().context("no schedules")?;
    let row = |name: &str| {
        let row = found.iter().find(|row| row["schedule"] == name)?;
        let stages = row["stages_per_rank"].as_f64()?;
        let kept = row["peak_activations"].as_array()?.iter().filter_map(Value::as_f64);
        let kept: Vec<String> = kept.map(|kept| (kept / stages).to_string()).collect();
        let backward = if row["splits_backward"].as_bool()? { "split" } else { "whole" };
        Some([
            code(name),
            row["makespan"].as_f64()?.to_string(),
            row["idle"].as_array()?.first()?.as_f64()?.to_string(),
            kept.join(", "),
            backward.to_owned(),
        ])
    };
    let header =
        ["schedule", "makespan", "idle per rank", "kept micro-batches, rank 0 to 3", "backward"];
    Ok(rows(header, schedules().iter().filter_map(|named| row(named.name))))
}

/// Names, features and summaries of the facade's registry, which depends on how it is built: so its
/// text is read.
fn backends_of_facade() -> Result<Vec<[String; 3]>> {
    backends(&fs::read_to_string(root().join("crates/stovepipe/src/backends.rs"))?)
}

fn backends(source: &str) -> Result<Vec<[String; 3]>> {
    let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
    let mut backends = Vec::new();
    let (mut feature, mut name) = (None, None);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[cfg(feature") {
            feature = quoted(line);
        } else if line.starts_with("name: \"") {
            name = quoted(line);
        } else if line.starts_with("summary: \"") {
            let (Some(feature), Some(name), Some(summary)) = (&feature, name.take(), quoted(line))
            else {
                bail!("`{line}` belongs to no backend");
            };
            backends.push([code(&name), code(feature), summary]);
        }
    }
    ensure!(!backends.is_empty(), "there are no backends");
    Ok(backends)
}

/// Features of a manifest, which comments with `##` describe.
fn features(manifest: &str) -> Result<Vec<[String; 2]>> {
    let (_, section) = manifest.split_once("[features]\n").context("there are no features")?;
    let mut features = Vec::new();
    let mut summary: Vec<&str> = Vec::new();
    for line in section.lines().take_while(|line| !line.starts_with('[')) {
        if let Some(comment) = line.strip_prefix("## ") {
            summary.push(comment);
        } else if let Some((name, _)) = line.split_once(" = ")
            && !summary.is_empty()
        {
            features.push([code(name), summary.join(" ")]);
            summary.clear();
        }
    }
    Ok(features)
}

/// The commands of a document that draw: its indented lines, joined where they end with a
/// backslash.
fn commands(document: &str) -> Vec<Vec<String>> {
    let text = document.replace("\\\n", " ");
    let commands = text.lines().filter_map(|line| line.strip_prefix("    stovepipe "));
    let words = commands.map(|command| command.split_whitespace().map(str::to_owned).collect());
    words.filter(|words: &Vec<String>| words.iter().any(|word| word == "--svg")).collect()
}

/// Draws the picture of a command: its path from the root, and its text.
fn picture(command: &[String], folder: &str) -> Result<(String, String)> {
    let at = command.iter().position(|word| word == "--svg").context("no picture")? + 1;
    let name = command.get(at).context("`--svg` needs a name")?;
    let scratch: PathBuf = target().join("docs");
    fs::create_dir_all(&scratch)?;
    let file = scratch.join(name);
    let shown = file.to_string_lossy();
    let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
    arguments[at] = &shown;
    stovepipe(&arguments)?;
    let path = Path::new(folder).join(name).to_string_lossy().replace('\\', "/");
    Ok((path, fs::read_to_string(&file)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_made_anew() -> Result<()> {
        let stale = "a\n<!-- table: schedules -->\nold\n<!-- end -->\nb <!-- table: policies -->\n<!-- end -->";
        let fresh = with_tables(stale, table)?;
        assert!(
            fresh.starts_with(
                "a\n<!-- table: schedules -->\n| name | what it does |\n|---|---|\n| `"
            )
        );
        assert!(
            fresh.contains("<!-- end -->\nb <!-- table: policies -->\n") && !fresh.contains("old")
        );
        for named in schedules() {
            assert!(fresh.contains(&format!("| `{}` | {} |\n", named.name, named.summary)));
        }
        assert_eq!(with_tables(&fresh, table)?, fresh);
        assert!(with_tables("<!-- table: schedules -->\n", table).is_err());
        assert!(with_tables("<!-- table: heroes -->\n<!-- end -->", table).is_err());
        Ok(())
    }

    #[test]
    fn registries_that_are_text_are_read() -> Result<()> {
        let source = "#[cfg(feature = \"a\")]\nNamedBackend {\n    name: \"a-b\",\n    summary: \"Does.\",\n";
        assert_eq!(backends(source)?, [["`a-b`", "`a`", "Does."]]);
        assert!(backends("").is_err());
        let manifest =
            "[features]\ndefault = []\n## Does\n## it.\nflex = []\n[lints]\n## No.\nx = 1\n";
        assert_eq!(features(manifest)?, [["`flex`", "Does it."]]);
        Ok(())
    }

    #[test]
    fn commands_are_found() {
        let document = "    stovepipe a --b 1 \\\n        --svg c.svg\n    stovepipe no picture\nstovepipe --svg\n";
        assert_eq!(commands(document), [["a", "--b", "1", "--svg", "c.svg"]]);
    }
}
