//! The ground that a benchmark stands on: the backend, and the machine with its devices and
//! versions.

use std::fmt;
use std::process::Command;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use stovepipe::prelude::*;
use stovepipe::{backend_named, backends};

/// The backend to run on.
#[derive(Args, Clone)]
pub struct On {
    /// The name of a backend that was compiled in, or several with commas between them, one for
    /// each rank in turn.
    #[arg(long = "backend", value_name = "NAME", default_value = backends()[0].name)]
    pub name: String,
    /// Threads for each rank on the processor.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

impl On {
    /// The backend.
    ///
    /// # Errors
    ///
    /// If there is none of that name.
    pub fn backend(&self) -> Result<Box<dyn Backend>> {
        Ok(backend_named(&self.name, self.threads)?)
    }

    /// The description of it for reports.
    ///
    /// # Errors
    ///
    /// If the backend has no devices, or the system doesn't say how many processors there are.
    pub fn machine(&self) -> Result<Machine> {
        let backend = self.backend()?;
        let devices = backend.devices()?.iter().map(|device| backend.device_name(device)).collect();
        Ok(Machine {
            backend: self.name.clone(),
            threads: self.threads,
            devices,
            graphics_processors: graphics_processors(),
            processors: std::thread::available_parallelism()?.get(),
            processor: processor(),
            system: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
            versions: versions(),
        })
    }
}

/// The machine that the figures were measured on.
#[derive(Serialize)]
pub struct Machine {
    backend: String,
    threads: usize,
    devices: Vec<String>,
    /// Each with its driver's version, where NVIDIA's driver lists them.
    graphics_processors: Vec<String>,
    processors: usize,
    processor: Option<String>,
    system: &'static str,
    architecture: &'static str,
    versions: Vec<String>,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, devices, threads, processors, processor, .. } = self;
        let processor = processor.as_deref().unwrap_or(self.architecture);
        write!(f, "{backend} on {}, threads for each rank: {threads}, ", devices.join(", "))?;
        write!(f, "{processors} processors ({processor})")?;
        self.graphics_processors.iter().try_for_each(|gpu| write!(f, ", {gpu}"))
    }
}

/// As NVIDIA's driver lists them.
fn graphics_processors() -> Vec<String> {
    let ask = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
    let listed = Command::new("nvidia-smi").args(ask).output().ok();
    let listed = listed.filter(|output| output.status.success());
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    listed.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The processor's name, where Linux tells.
fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Of this workspace, and of what computes. `tch` 0.22 is bound to LibTorch 2.9.0.
fn versions() -> Vec<String> {
    const LOCK: &str = include_str!("../../Cargo.lock");
    const SHOWN: [&str; 5] = ["stovepipe", "burn", "cubecl", "wgpu", "tch"];
    let packages = LOCK.split("[[package]]").filter_map(|package| {
        let value = |key: &str| package.lines().find_map(|line| line.strip_prefix(key));
        Some((value("name = ")?.trim_matches('"'), value("version = ")?.trim_matches('"')))
    });
    let shown = packages.filter(|(name, _)| SHOWN.contains(name));
    shown.map(|(name, version)| format!("{name} {version}")).collect()
}
