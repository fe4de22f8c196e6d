//! Writing results: standard output, which may be closed early, and files; and how far they are.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::presets::ASCII_FULL_CONDENSED;
use comfy_table::{Cell, Table};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;

/// Writes text to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a value as JSON to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Writes a file, and says so on standard error, where it doesn't get into results.
pub(crate) fn write(path: &Path, content: &str) -> Result<()> {
    std::fs::write(path, content)
        .with_context(|| format!("{} can't be written", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// An empty table with a header, without lines between rows.
pub(crate) fn table<T: Into<Cell>>(header: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_FULL_CONDENSED).set_header(header);
    table
}

/// A bar on standard error for work of so many steps; nothing where that isn't a terminal. It is
/// gone once it is dropped.
pub(crate) fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left");
    let bar = ProgressBar::new(steps as u64).with_message(what);
    // The template is right, and the default would be a bar too.
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_finish(ProgressFinish::AndClear)
}

/// Whether standard output was closed before all was written.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(ErrorKind::BrokenPipe)
}

/// A part as a percentage, or a dash where it is undefined.
pub(crate) fn percent(part: Option<f64>) -> String {
    part.map_or("-".to_owned(), |part| format!("{:.1}%", 100.0 * part))
}

/// A time, to six digits that mean something.
pub(crate) fn time(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { 5 - value.abs().log10().floor() as i32 };
    let text = format!("{value:.*}", digits.clamp(0, 12) as usize);
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(time(28.5), "28.5");
        assert_eq!(time(33.0), "33");
        assert_eq!(time(0.0), "0");
        assert_eq!(time(1_234_567.8), "1234568");
        assert_eq!(time(1.0 / 3.0), "0.333333");
        assert_eq!(percent(Some(0.2727)), "27.3%");
        assert_eq!(percent(None), "-");
    }
}
