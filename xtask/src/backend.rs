//! The backends that tests and benchmarks can run on: which crates and features they are, and what they need.

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::setup::Setup;
use crate::shell::program;

/// The features that one build of Burn serves together.
const TOGETHER: &str = "stovepipe/tch,stovepipe/wgpu";
/// The same with CUDA, which links LLVM, and with transports, which Burn has nothing to do with.
pub(crate) const EVERYTHING: &str = "stovepipe/tch,stovepipe/wgpu,stovepipe/cuda,stovepipe/mpi,\
     stovepipe-benches/mpi,stovepipe-examples/mpi";

/// Whether NVIDIA's driver lists devices.
pub(crate) fn has_nvidia() -> bool {
    program("nvidia-smi").args(["-L"]).read().is_ok_and(|devices| devices.contains("GPU"))
}

/// A backend.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// Burn's Flex backend on the processor.
    Flex,
    /// Graphics processors through Vulkan, Metal, DirectX 12 or OpenGL.
    Wgpu,
    /// LibTorch.
    Tch,
    /// NVIDIA's graphics processors.
    Cuda,
}

impl Backend {
    /// As programs take it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Wgpu => "wgpu",
            Self::Tch => "tch",
            Self::Cuda => "cuda",
        }
    }

    fn setup(self) -> Option<Setup> {
        match self {
            Self::Flex => None,
            Self::Wgpu => Some(Setup::Wgpu),
            Self::Tch => Some(Setup::Tch),
            Self::Cuda => Some(Setup::Cuda),
        }
    }

    /// Says how to set it up if that hasn't been done.
    pub(crate) fn require(self) -> Result<()> {
        let name = self.name();
        match self.setup() {
            Some(setup) if !setup.is_ready() => bail!("run `cargo xtask setup {name}` first"),
            _ => Ok(()),
        }
    }

    /// What Cargo builds for programs that run on it. LibTorch and wgpu are built together where both can be, so
    /// that one build of Burn serves both.
    pub(crate) fn built(self) -> Vec<&'static str> {
        match self {
            Self::Flex => Vec::new(),
            Self::Wgpu if !Setup::Tch.is_ready() => vec!["--features", "wgpu"],
            Self::Wgpu | Self::Tch => {
                let but = ["--exclude", "stovepipe-cuda", "--exclude", "stovepipe-mpi"];
                [&["--workspace"], &but[..], &["--features", TOGETHER]].concat()
            }
            Self::Cuda => vec!["--features", "cuda"],
        }
    }

    /// What Cargo tests: on Flex everything, on another backend its crate and what runs on every backend there
    /// is.
    pub(crate) fn tested(self) -> Vec<&'static str> {
        let on_all = ["--test", "backends", "--test", "char_lm"];
        match self {
            Self::Flex => Vec::new(),
            Self::Wgpu if !Setup::Tch.is_ready() => {
                let build = ["--package", "stovepipe-wgpu", "--package", "stovepipe"];
                let build = build.into_iter().chain(["--package", "stovepipe-examples"]);
                build
                    .chain(["--features", "stovepipe/wgpu", "--test", "wgpu"])
                    .chain(on_all)
                    .collect()
            }
            Self::Wgpu => [self.built(), vec!["--test", "wgpu"], on_all.to_vec()].concat(),
            Self::Tch => [self.built(), vec!["--test", "tch"], on_all.to_vec()].concat(),
            Self::Cuda => vec!["--package", "stovepipe-cuda"],
        }
    }
}
