//! `cargo xtask setup`: what some crates need beyond a Rust toolchain.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// What can be set up.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Setup {
    /// MPI and libclang, for `stovepipe-mpi`.
    Mpi,
}

pub(crate) fn run(what: Setup) -> Result<()> {
    match what {
        Setup::Mpi => debian_packages(&["libopenmpi-dev", "openmpi-bin", "libclang-dev"]),
    }
}

/// Installs packages on Debian and Ubuntu, or says how to where it may not.
fn debian_packages(packages: &[&str]) -> Result<()> {
    let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
    let line = format!("{} {}", install.join(" "), packages.join(" "));
    let advice = "elsewhere install Open MPI, its headers and libclang by your system's means";
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let has_apt = Command::new("apt-get").arg("--version").output().is_ok();
    if !has_apt || !is_root {
        println!("as root, on Debian and Ubuntu:\n\n    apt-get update\n    {line}\n\n{advice}");
        bail!("nothing was installed: {}", if has_apt { "this isn't root" } else { "no apt-get" });
    }
    for arguments in [&["apt-get", "update"][..], &[&install[..], packages].concat()] {
        eprintln!("$ {}", arguments.join(" "));
        let status = Command::new(arguments[0])
            .args(&arguments[1..])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .status()
            .context("apt-get can't be started")?;
        if !status.success() {
            bail!("`{}` failed: {status}", arguments.join(" "));
        }
    }
    Ok(())
}
