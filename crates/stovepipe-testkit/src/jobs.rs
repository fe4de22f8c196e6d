//! Starting a job with `mpirun`, waiting for its end, and looking at what it left.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The first argument that makes a program a rank of a job instead of what starts it.
pub const AS_RANK: &str = "--as-rank";
/// The word behind which each process prints its number, so that [`launch`] can look whether it is
/// gone.
pub const PROCESS: &str = "process ";

/// No job takes that long; one that fails must end within 30 seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The end of a job.
pub struct Ended {
    /// The status that `mpirun` returned.
    pub status: ExitStatus,
    /// Standard output, then standard error.
    pub output: String,
    /// From its start to its end.
    pub took: Duration,
}

impl Ended {
    /// Checks that all ranks succeeded.
    ///
    /// # Errors
    ///
    /// What the job printed, if it didn't.
    pub fn must_succeed(&self) -> Result<(), String> {
        match self.status.success() {
            true => Ok(()),
            false => Err(format!("the job ended with {}\n{}", self.status, self.output)),
        }
    }
}

/// The command that runs this program as so many ranks, each with [`AS_RANK`] and the arguments.
///
/// # Errors
///
/// If the system doesn't say where this program is.
pub fn mpirun(ranks: usize, arguments: &[&str]) -> Result<Command, String> {
    let myself = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]).arg(myself).arg(AS_RANK).args(arguments);
    // For Open MPI: more ranks than cores, and root in containers.
    command
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Ok(command)
}

/// Runs a job of this program on so many processes.
///
/// # Errors
///
/// If it can't be started, hangs, or leaves processes behind.
pub fn launch(ranks: usize, arguments: &[&str]) -> Result<Ended, String> {
    let start = Instant::now();
    let mut child = mpirun(ranks, arguments)?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("mpirun can't be started ({error}): `cargo xtask setup mpi`"))?;
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait(&mut child)?;
    let took = start.elapsed();
    let text = |reader: JoinHandle<String>| reader.join().unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let left = left_behind(&stdout);
    let output = format!("{stdout}{stderr}");
    if !left.is_empty() {
        return Err(format!("processes {left:?} are left behind\n{output}"));
    }
    Ok(Ended { status, output, took })
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => return Ok(status),
            None if start.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the job hangs: it isn't done within {LIMIT:?}"));
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The job's processes that still run a while after its end.
fn left_behind(stdout: &str) -> Vec<u32> {
    let processes = stdout.lines().filter_map(|line| line.strip_prefix(PROCESS)?.parse().ok());
    let mut left: Vec<u32> = processes.collect();
    for _ in 0..100 {
        left.retain(|process| std::path::Path::new(&format!("/proc/{process}")).exists());
        if left.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    left
}
