//! Where the figures go.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

/// Where a benchmark's report goes.
#[derive(Args)]
pub(crate) struct Destination {
    /// Where the report goes, by default a file of the benchmark's name in target/bench; a relative
    /// path starts at the workspace's folder.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Destination {
    /// Writes the report of the benchmark of this name as JSON and says where.
    pub(crate) fn write(&self, name: &str, report: &impl Serialize) -> Result<()> {
        let usual = || Path::new("target/bench").join(name).with_extension("json");
        write(report, &self.out.clone().unwrap_or_else(usual))
    }
}

/// Cargo runs benchmarks in their package's folder.
fn write(report: &impl Serialize, path: &Path) -> Result<()> {
    let out = Path::new("..").join(path);
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{} can't be made", folder.display()))?;
    }
    std::fs::write(&out, serde_json::to_string_pretty(report)?)
        .with_context(|| format!("{} can't be written", out.display()))?;
    println!("\nThe report is in {}", path.display());
    Ok(())
}
