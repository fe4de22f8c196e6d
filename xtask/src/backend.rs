//! The backends that tests and benchmarks can run on: which crates and features they are, and what
//! they need.

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
    /// LibTorch on the processor.
    Tch,
    /// LibTorch on NVIDIA's graphics processors.
    TchCuda,
    /// LibTorch on Apple's graphics processor.
    TchMps,
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
            Self::TchCuda => "tch-cuda",
            Self::TchMps => "tch-mps",
            Self::Cuda => "cuda",
        }
    }

    /// Says how to set it up if that hasn't been done.
    pub(crate) fn require(self) -> Result<()> {
        let setup = match self {
            Self::Flex => return Ok(()),
            Self::Wgpu => Setup::Wgpu,
            Self::Tch | Self::TchCuda | Self::TchMps => Setup::Tch,
            Self::Cuda => Setup::Cuda,
        };
        if !setup.is_ready() {
            bail!("run `cargo xtask setup {}` first", setup.name());
        }
        Ok(())
    }

    /// Cargo's arguments for building programs that run on it. Backends are built together where
    /// they can be, so that one build of Burn serves them.
    pub(crate) fn built(self) -> Vec<&'static str> {
        match self {
            Self::Flex => Vec::new(),
            _ if Setup::value_variants().iter().all(|setup| setup.is_installed()) => {
                vec!["--workspace", "--features", EVERYTHING]
            }
            Self::Wgpu if !Setup::Tch.is_ready() => vec!["--features", "wgpu"],
            Self::Wgpu | Self::Tch | Self::TchCuda | Self::TchMps => {
                let but = ["--exclude", "stovepipe-cuda", "--exclude", "stovepipe-mpi"];
                [&["--workspace"], &but[..], &["--features", TOGETHER]].concat()
            }
            Self::Cuda => vec!["--features", "cuda"],
        }
    }

    /// Cargo's arguments for testing: on Flex everything, on another backend its crate and what
    /// runs on every backend there is.
    pub(crate) fn tested(self) -> Vec<&'static str> {
        let (package, feature, test) = match self {
            Self::Flex => return Vec::new(),
            // Where nothing can be computed on it, its crate is only linked and asked for devices.
            Self::Cuda if !has_nvidia() => return vec!["--package", "stovepipe-cuda"],
            Self::Cuda => ("stovepipe-cuda", "stovepipe/cuda", "cuda"),
            Self::Wgpu => ("stovepipe-wgpu", "stovepipe/wgpu", "wgpu"),
            Self::Tch | Self::TchCuda | Self::TchMps => ("stovepipe-tch", "stovepipe/tch", "tch"),
        };
        let mut build = self.built();
        if !build.contains(&"--workspace") {
            // The crates that have these tests.
            build = vec!["--package", package, "--package", "stovepipe"];
            build.extend(["--package", "stovepipe-examples", "--features", feature]);
        }
        build.extend(["--test", test, "--test", "backends", "--test", "char_lm"]);
        build
    }
}
