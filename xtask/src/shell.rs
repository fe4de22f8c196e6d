//! Running commands: what is run is printed, and a failure is an error that names it.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};

/// A command that will be shown and checked.
pub(crate) struct Run(Command);

/// Cargo with these arguments, in the workspace.
pub(crate) fn cargo<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Run {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = program(Path::new(&cargo)).args(arguments);
    // What Cargo told this program of its own package: some build scripts would run again for it,
    // and Burn be compiled again.
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if shown.starts_with("CARGO_PKG_") || shown.starts_with("CARGO_MANIFEST_") {
            run.0.env_remove(&name);
        }
    }
    run
}

/// A program, in the workspace.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Run {
    let mut command = Command::new(name);
    command.current_dir(root());
    Run(command)
}

/// The workspace's folder: where Cargo runs it, as checkouts that share a build folder share this
/// program.
pub(crate) fn root() -> PathBuf {
    let built = || env!("CARGO_MANIFEST_DIR").into();
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(built)).join("..")
}

impl Run {
    /// Adds arguments.
    pub(crate) fn args<I: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = I>) -> Self {
        self.0.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs it with its output shown.
    pub(crate) fn run(mut self) -> Result<()> {
        let shown = self.shown();
        eprintln!("$ {shown}");
        let status = self.0.status().with_context(|| format!("`{shown}` can't be started"))?;
        if !status.success() {
            bail!("`{shown}` failed: {status}");
        }
        Ok(())
    }

    /// Starts it, and keeps its output until it is waited for.
    pub(crate) fn meanwhile(mut self) -> Result<Meanwhile> {
        let shown = self.shown();
        let (mut reader, writer) = std::io::pipe()?;
        self.0.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = self.0.spawn().with_context(|| format!("`{shown}` can't be started"))?;
        // The pipe ends when nobody can write into it any more.
        drop(self);
        let output = thread::spawn(move || {
            let mut output = Vec::new();
            reader.read_to_end(&mut output).map(|_| output)
        });
        Ok(Meanwhile { child, output, shown })
    }

    /// Runs it and returns its output.
    pub(crate) fn read(mut self) -> Result<String> {
        let shown = self.shown();
        let output = self.0.output().with_context(|| format!("`{shown}` can't be started"))?;
        if !output.status.success() {
            bail!("`{shown}` failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    fn shown(&self) -> String {
        let name = Path::new(self.0.get_program()).file_stem().unwrap_or(self.0.get_program());
        let words = std::iter::once(name).chain(self.0.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
    }
}

/// A command that runs while something else is done.
pub(crate) struct Meanwhile {
    child: Child,
    output: JoinHandle<io::Result<Vec<u8>>>,
    shown: String,
}

impl Meanwhile {
    /// Waits for its end and shows its output.
    pub(crate) fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        let output = self.output.join().map_err(|_| anyhow!("nobody reads its output"))??;
        eprintln!("$ {}\n{}", self.shown, String::from_utf8_lossy(&output));
        if !status.success() {
            bail!("`{}` failed: {status}", self.shown);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_meanwhile() -> Result<()> {
        let rustc = program("rustc").args(["--version"]).meanwhile()?;
        let wrong = program("rustc").args(["--no-such-flag"]).meanwhile()?;
        rustc.wait()?;
        let error = wrong.wait().expect_err("it fails").to_string();
        assert!(error.contains("`rustc --no-such-flag` failed"), "{error}");
        Ok(())
    }
}
