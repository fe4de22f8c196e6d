//! `cargo xtask setup`: installs what a Debian or Ubuntu machine lacks, or says what to run where
//! it may not. What is there is left alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::backend::has_nvidia;
use crate::shell::{Meanwhile, program, root};

/// The version that `tch` binds to.
const TORCH: &str = "2.9.0";

/// A thing that can be set up.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Setup {
    /// A Vulkan driver, if only Mesa's software renderer.
    Wgpu,
    /// LibTorch, from PyTorch's package in a virtual environment of its own.
    Tch,
    /// The LLVM that Burn's CUDA compiler is linked with.
    Cuda,
    /// MPI and libclang, for `stovepipe-mpi`.
    Mpi,
}

impl Setup {
    /// As on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether nothing is lacking, or only what a build downloads.
    pub(crate) fn is_ready(self) -> bool {
        self.is_installed() || (self == Self::Cuda && is_llvm_reached())
    }

    /// Whether nothing is lacking.
    pub(crate) fn is_installed(self) -> bool {
        match self {
            // Elsewhere it is looked for when devices are listed.
            Self::Wgpu => {
                !is_debian() || (has_library("libvulkan.so.1") && !vulkan_drivers().is_empty())
            }
            // Set by the file that `configure_torch` writes, or by somebody who has a LibTorch
            // already.
            Self::Tch => std::env::var_os("LIBTORCH")
                .map_or_else(|| torch_config().is_file(), |torch| is_libtorch(Path::new(&torch))),
            Self::Cuda => llvm().is_ok_and(|llvm| llvm.join(SENTINEL).exists()),
            Self::Mpi => {
                let answers = |name: &&str| program(name).args(["--version"]).read().is_ok();
                ["mpirun", "mpicc"].iter().all(answers)
                    && (std::env::var_os("LIBCLANG_PATH").is_some()
                        || ["libclang.so", "libclang-1", "libclang-2", "libclang.dylib"]
                            .into_iter()
                            .any(has_library))
            }
        }
    }

    /// Installs what all lack, while something else is done: in a process of its own, whose output
    /// waits.
    pub(crate) fn all_meanwhile() -> Result<Meanwhile> {
        // PyTorch last: it takes longest, and downloads only.
        let all = [Self::Wgpu, Self::Mpi, Self::Cuda, Self::Tch];
        let myself = std::env::current_exe()?;
        program(myself).args(["setup"]).args(all.map(Self::name)).meanwhile()
    }

    /// Installs what is lacking.
    pub(crate) fn run(self) -> Result<()> {
        let name = self.name();
        if self.is_ready() {
            eprintln!("{name}: everything is there");
        } else {
            match self {
                Self::Wgpu => packages(&["mesa-vulkan-drivers", "libvulkan1"], &[]),
                Self::Tch => torch(),
                Self::Cuda => cuda(),
                Self::Mpi => packages(&["libopenmpi-dev", "openmpi-bin", "libclang-dev"], &[]),
            }?;
            eprintln!("{name}: set up");
        }
        if self == Self::Wgpu
            && cfg!(target_os = "linux")
            && has_nvidia()
            && !vulkan_drivers().contains("nvidia")
        {
            eprintln!(
                "there is an NVIDIA device, but not its Vulkan driver (Debian: nvidia-vulkan-icd, Ubuntu: \
                 libnvidia-gl): wgpu can't use it, and computes on the processor"
            );
        }
        Ok(())
    }
}

/// Names of Vulkan's drivers on Linux, each of which is a file.
fn vulkan_drivers() -> String {
    let chosen = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(std::env::var_os);
    let chosen = chosen.into_iter().flatten().map(PathBuf::from);
    let places = ["/usr/share", "/usr/local/share", "/etc", "/usr/local/etc"].into_iter();
    let folders = places.filter_map(|place| Path::new(place).join("vulkan/icd.d").read_dir().ok());
    let found = folders.flat_map(|drivers| drivers.flatten().map(|driver| driver.path()));
    chosen.chain(found).map(|path| format!("{}\n", path.display())).collect()
}

fn is_debian() -> bool {
    Path::new("/usr/bin/apt-get").exists()
}

/// Whether a library of this name will be found: the loader knows it, or it is where LLVMs are or
/// somebody told the loader to look.
fn has_library(name: &str) -> bool {
    // Not everybody's path has the folder of the system's own programs.
    let loaders = ["ldconfig", "/sbin/ldconfig"].into_iter();
    let mut known = loaders.filter_map(|loader| program(loader).args(["-p"]).read().ok());
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let llvms = Path::new("/usr/lib").read_dir().into_iter().flatten().flatten();
    let llvms = llvms.filter(|folder| folder.file_name().to_string_lossy().starts_with("llvm-"));
    let apple = ["/Library/Developer/CommandLineTools/usr/lib", "/opt/homebrew/opt/llvm/lib"];
    let folders = std::env::split_paths(&told)
        .chain(llvms.map(|folder| folder.path().join("lib")))
        .chain(apple.map(PathBuf::from));
    let mut files = folders.filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    known.any(|known| known.contains(name))
        || files.any(|file| file.file_name().to_string_lossy().starts_with(name))
}

/// Installs Debian packages, and goes on as root.
fn packages(names: &[&str], then: &[&[&str]]) -> Result<()> {
    if !is_debian() {
        bail!(
            "this is no Debian or Ubuntu: install what its packages {} hold, then try again",
            names.join(", ")
        );
    }
    let install = ["apt-get", "install", "-y", "-q", "-o", "DPkg::Lock::Timeout=600"];
    let install: Vec<&str> = install.into_iter().chain(names.iter().copied()).collect();
    as_root(&[&[&["apt-get", "update", "-q"], &install[..]], then].concat())
}

/// Runs commands as root, or prints them where that isn't allowed.
fn as_root(commands: &[&[&str]]) -> Result<()> {
    let says = |command: &str, arguments: &[&str]| {
        let output = Command::new(command).args(arguments).stderr(Stdio::null()).output();
        output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let is_root = says("id", &["-u"]).is_some_and(|id| id.trim_ascii() == b"0");
    if !is_root && says("sudo", &["-n", "true"]).is_none() {
        let shown: Vec<String> =
            commands.iter().map(|command| format!("    sudo {}", command.join(" "))).collect();
        bail!("this needs root's rights; run\n\n{}\n\nthen try again", shown.join("\n"));
    }
    for command in commands {
        let (first, rest) = command.split_first().context("an empty command")?;
        let run = if is_root { program(first) } else { program("sudo").args([first]) };
        run.args(rest).env("DEBIAN_FRONTEND", "noninteractive").run()?;
    }
    Ok(())
}

/// Where Cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The virtual environment that PyTorch is in.
fn environment() -> PathBuf {
    target().join(format!("torch-{TORCH}"))
}

/// The interpreter of the PyTorch that LibTorch is part of, which serves comparisons.
pub(crate) fn python() -> Option<PathBuf> {
    let torch = PathBuf::from(std::env::var_os("LIBTORCH")?).canonicalize().ok()?;
    let found = torch.ancestors().flat_map(|folder| {
        [folder.join("bin/python"), folder.join("bin/python3")].map(|python| {
            let its = python.exists().then(|| torch_of(&python).ok()?.canonicalize().ok());
            (python, its.flatten())
        })
    });
    found.into_iter().find(|(_, its)| its.as_ref() == Some(&torch)).map(|(python, _)| python)
}

/// The folder of an interpreter's PyTorch.
fn torch_of(python: &Path) -> Result<PathBuf> {
    let find =
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    Ok(PathBuf::from(program(python).args(["-c", find]).read()?.trim()))
}

/// The file that `.cargo/config.toml` includes: where LibTorch is.
fn torch_config() -> PathBuf {
    root().join("target/libtorch.toml")
}

fn is_libtorch(folder: &Path) -> bool {
    folder.join("lib/libtorch.so").exists() || folder.join("lib/libtorch.dylib").exists()
}

fn torch() -> Result<()> {
    let environment = environment();
    let python = environment.join("bin/python").to_string_lossy().into_owned();
    if program(&python).args(["-m", "pip", "--version"]).read().is_err() {
        // One that was left halfway has no pip.
        let make = || program("python3").args(["-m", "venv", "--clear"]).args([&environment]).run();
        // Debian has a package of its own for that.
        if make().is_err() {
            packages(&["python3", "python3-venv"], &[])?;
            make()?;
        }
    }
    let torch = format!("torch=={TORCH}");
    // NumPy only keeps PyTorch from complaining that it isn't there.
    program(&python).args(["-m", "pip", "install", "--quiet", &torch, "numpy"]).run()?;
    let folder = torch_of(Path::new(&python))?;
    if !is_libtorch(&folder) {
        bail!("{} holds no LibTorch", folder.display());
    }
    configure_torch(&folder)?;
    match std::env::var_os("LIBTORCH") {
        Some(other) if Path::new(&other) != folder => bail!(
            "LibTorch is in {}, but LIBTORCH says {}: unset it if it is yours, and run this again",
            folder.display(),
            other.display()
        ),
        _ => Ok(()),
    }
}

/// Tells Cargo where LibTorch is: for building by a variable, for running by where libraries are
/// looked for.
fn configure_torch(folder: &Path) -> Result<()> {
    let folder = folder.display();
    let config = torch_config();
    // Cargo appends the program and its arguments.
    let runner = |system: &str, variable: &str| {
        format!(
            "[target.'cfg(target_os = \"{system}\")']\nrunner = [\"sh\", \"-c\", '''\
             {variable}=\"{folder}/lib${{{variable}:+:${variable}}}\" exec \"$0\" \"$@\"''']\n"
        )
    };
    let text = format!(
        "[env]\nLIBTORCH = \"{folder}\"\n\n{}\n{}",
        runner("linux", "LD_LIBRARY_PATH"),
        runner("macos", "DYLD_LIBRARY_PATH")
    );
    if let Some(parent) = config.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(&config, text).with_context(|| format!("{} can't be written", config.display()))
}

/// Marks a folder as a complete LLVM for Burn's build.
const SENTINEL: &str = ".tracel-llvm-installed";
/// The version of Debian's LLVM that serves.
const DEBIAN_LLVM: &str = "22";

/// The version of LLVM that Burn's CUDA compiler asks for: that of the crate which fetches it.
fn llvm_version() -> Result<String> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock"))?;
    let package = lock.split("[[package]]").find(|p| p.contains("name = \"tracel-llvm-bundler\""));
    let version = package.and_then(|p| p.split("version = \"").nth(1)?.split('"').next());
    Ok(version.context("Cargo.lock has no tracel-llvm-bundler")?.to_owned())
}

/// Where Burn's build looks for LLVM.
fn llvm() -> Result<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = data.or_else(home).context("neither XDG_DATA_HOME nor HOME is set")?;
    Ok(data.join("tracel").join(format!("tracel-llvm-{}", llvm_version()?)))
}

/// Whether Burn's build can fetch the LLVM itself.
fn is_llvm_reached() -> bool {
    let Ok(version) = llvm_version() else { return false };
    let architecture = if cfg!(target_arch = "x86_64") { "x64" } else { "AArch64" };
    let system = std::env::consts::OS;
    let page = format!(
        "https://github.com/tracel-ai/tracel-llvm/releases/download/v{version}/\
         {system}-{architecture}.checksums.json"
    );
    let look = ["--head", "--fail", "--silent", "--location", "--max-time", "20", &page];
    program("curl").args(look).read().is_ok()
}

fn cuda() -> Result<()> {
    if program("curl").args(["--version"]).read().is_err() {
        packages(&["curl"], &[])?;
        if is_llvm_reached() {
            return Ok(());
        }
    }
    if !is_debian() {
        bail!(
            "Burn's own LLVM can't be reached: install LLVM {DEBIAN_LLVM} with Polly, link its folder to {} and put \
             an empty file {SENTINEL} into it",
            llvm()?.display()
        );
    }
    eprintln!("cuda: Burn's own LLVM can't be reached; the distribution's serves");
    let llvm_dev = format!("llvm-{DEBIAN_LLVM}-dev");
    let polly = format!("libpolly-{DEBIAN_LLVM}-dev");
    let names = [&*llvm_dev, &polly, "libz3-dev", "zlib1g-dev", "libzstd-dev", "libxml2-dev"];
    let home = format!("/usr/lib/llvm-{DEBIAN_LLVM}");
    let z3 = format!("/usr/lib/{}-linux-gnu/libz3.so", std::env::consts::ARCH);
    // Debian's llvm-config names this library so.
    let linked_as = format!("{home}/lib/liblibz3.so");
    let sentinel = format!("{home}/{SENTINEL}");
    let finish: [&[&str]; 2] = [&["ln", "-sfn", &z3, &linked_as], &["touch", &sentinel]];
    if !Path::new(&sentinel).exists() {
        packages(&names, &finish)?;
    }
    let folder = llvm()?;
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let folder = folder.to_string_lossy().into_owned();
    program("ln").args(["-sfn", &home, &folder]).run()
}
