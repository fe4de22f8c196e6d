//! The same model in PyTorch, trained by `torch.distributed.pipelining`: see
//! `peers/torch_pipelining.py`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use stovepipe_benches::{Model, On};

/// Of one stage, and of several under each schedule.
pub(crate) const SCHEDULES: [&str; 3] = ["single", "gpipe", "1f1b"];

/// A line that the script prints.
#[derive(Deserialize)]
pub(crate) struct Line {
    /// Of each step.
    pub(crate) seconds: Vec<f64>,
    /// PyTorch's.
    pub(crate) version: String,
}

/// Why the script can't train this, if it can't.
pub(crate) fn refuses(
    model: &Model,
    stages: usize,
    micro_batches: &[usize],
) -> Option<&'static str> {
    if model.uneven {
        Some("its script has even blocks only")
    } else if !model.layers.is_multiple_of(stages) {
        Some("its script gives all stages equally many blocks")
    } else if micro_batches.iter().any(|count| !model.batch.is_multiple_of(*count)) {
        Some("its script gives all micro-batches equally many samples")
    } else {
        None
    }
}

/// A run of the script.
pub(crate) struct Run {
    pub(crate) schedule: &'static str,
    pub(crate) stages: usize,
    pub(crate) micro_batches: usize,
    pub(crate) steps: usize,
}

impl Run {
    /// Runs the script, and reads what it prints.
    pub(crate) fn measure(&self, python: &Path, on: &On, model: &Model) -> Result<Line> {
        let output = Command::new(python)
            .arg("peers/torch_pipelining.py")
            .args(["--schedule", self.schedule])
            .args(["--micro-batches", &self.micro_batches.to_string()])
            .args(["--stages", &self.stages.to_string(), "--steps", &self.steps.to_string()])
            .args(["--threads", &on.threads.to_string()])
            .args(model.arguments())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("{} can't be started", python.display()))?;
        ensure!(output.status.success(), "PyTorch's script failed: {}", output.status);
        let text = String::from_utf8(output.stdout)?;
        // Gloo prints there too.
        let line = text.lines().find(|line| line.starts_with('{')).unwrap_or(&text);
        serde_json::from_str(line).with_context(|| format!("PyTorch's script printed `{line}`"))
    }
}
