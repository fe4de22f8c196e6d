//! The same model in PyTorch, trained by `torch.distributed.pipelining`: see `peers/torch_pipelining.py`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use stovepipe_benches::{Model, On};

/// Of one stage, and of several under each schedule.
pub(crate) const SCHEDULES: [&str; 3] = ["single", "gpipe", "1f1b"];

/// A line that the script prints.
#[derive(Deserialize)]
struct Line {
    micro_batches: usize,
    seconds: Vec<f64>,
}

/// Seconds of steps by number of micro-batches.
pub(crate) fn measure(
    python: &Path,
    schedule: &str,
    stages: usize,
    micro_batches: &[usize],
    steps: usize,
    (on, model): (&On, &Model),
) -> Result<BTreeMap<usize, Vec<f64>>> {
    ensure!(!model.uneven, "PyTorch's script has even blocks only: leave out --uneven or --torch");
    let counts: Vec<String> = micro_batches.iter().map(usize::to_string).collect();
    let output = Command::new(python)
        .arg("peers/torch_pipelining.py")
        .args(["--schedule", schedule, "--micro-batches", &counts.join(",")])
        .args(["--stages", &stages.to_string(), "--steps", &steps.to_string()])
        .args(["--threads", &on.threads.to_string()])
        .args(model.arguments())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{} can't be started", python.display()))?;
    ensure!(output.status.success(), "PyTorch's script failed: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    // Gloo prints there too.
    let lines = text.lines().filter(|line| line.starts_with('{')).map(|line| {
        let Line { micro_batches, seconds } = serde_json::from_str(line)
            .with_context(|| format!("PyTorch's script printed `{line}`"))?;
        Ok((micro_batches, seconds))
    });
    lines.collect()
}
