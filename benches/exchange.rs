//! What the exchange of boundaries costs against MPI alone: a tensor is encoded, sent, received, decoded and
//! comes back the same way, between two processes; then the same bytes with MPI's blocking send and receive.
//! Starts itself with `mpirun` for each.

use std::process::{Command, ExitCode};
use std::time::Instant;

use futures::executor::block_on;
use mpi::traits::{Communicator, Destination, Source};
use stovepipe::Mpi;
use stovepipe::Packet;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::transport::{Direction, Tag, Transport};
use stovepipe::tune::Time;

const AS_RANK: &str = "--as-rank";
/// 1 MiB of floats.
const SHAPE: [usize; 2] = [512, 512];
const WARM_UP: usize = 50;
const MEASURED: usize = 400;
/// Each is measured so often, in turns.
const TURNS: usize = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [AS_RANK, "plain"] => plain(),
        [AS_RANK, "boundaries"] => boundaries(),
        _ => return driver(),
    }
    ExitCode::SUCCESS
}

fn driver() -> ExitCode {
    let turns = (0..TURNS).map(|_| Some((measure("plain")?, measure("boundaries")?)));
    let Some(turns) = turns.collect::<Option<Vec<_>>>() else {
        eprintln!("mpirun can't be run: `cargo xtask setup mpi`");
        return ExitCode::FAILURE;
    };
    let microseconds = |seconds: f64| 1e6 * seconds;
    for (plain, boundaries) in &turns {
        println!(
            "1 MiB there and back: MPI alone {:.0} us, encoded and decoded {:.0} us, ratio {:.2}",
            microseconds(*plain),
            microseconds(*boundaries),
            boundaries / plain
        );
    }
    let ratio =
        Time::of(turns.iter().map(|(plain, boundaries)| boundaries / plain).collect()).median;
    println!("median ratio {ratio:.2}, of which at most 3 is the aim");
    if ratio <= 3.0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one of the two on two processes; the first prints the median of its round trips in seconds.
fn measure(what: &str) -> Option<f64> {
    let myself = std::env::current_exe().ok()?;
    let output = Command::new("mpirun")
        .args(["-n", "2"])
        .arg(myself)
        .args([AS_RANK, what])
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .ok()?;
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// The median of `round_trip`, in seconds.
fn timed(mut round_trip: impl FnMut(usize)) -> f64 {
    (0..WARM_UP).for_each(&mut round_trip);
    let times = (WARM_UP..WARM_UP + MEASURED).map(|number| {
        let start = Instant::now();
        round_trip(number);
        start.elapsed().as_secs_f64()
    });
    Time::of(times.collect()).median
}

fn plain() {
    let universe = mpi::initialize().expect("MPI");
    let world = universe.world();
    let is_first = world.rank() == 0;
    let peer = world.process_at_rank(1 - world.rank());
    let mut bytes = vec![1u8; SHAPE[0] * SHAPE[1] * size_of::<f32>()];
    let seconds = timed(|_| {
        if is_first {
            peer.send(&bytes[..]);
            peer.receive_into(&mut bytes[..]);
        } else {
            peer.receive_into(&mut bytes[..]);
            peer.send(&bytes[..]);
        }
    });
    if is_first {
        println!("{seconds}");
    }
}

fn boundaries() {
    let mpi = Mpi::world().expect("MPI");
    let endpoint: &dyn Transport<Packet> = &mpi;
    let me = mpi.rank();
    let peer = 1 - me;
    let tag = |number: usize, from: usize| Tag {
        step: number as u64,
        micro_batch: 0,
        from_stage: from as u32,
        to_stage: 1 - from as u32,
        direction: Direction::Forward,
    };
    let send = |number, tensor: Tensor<2>| {
        block_on(endpoint.send(peer, tag(number, me), Packet::new(tensor))).expect("a send");
    };
    let receive = |number| -> Tensor<2> {
        let packet = block_on(endpoint.recv(peer, tag(number, peer))).expect("a receive");
        packet.into_value().expect("a tensor")
    };
    let mut ball = (me == 0).then(|| Tensor::<2>::ones(SHAPE, &Device::flex()));
    let seconds = timed(|number| {
        match ball.take() {
            Some(tensor) => {
                send(number, tensor);
                ball = Some(receive(number));
            }
            None => {
                let tensor = receive(number);
                send(number, tensor);
            }
        }
        endpoint.end_step(number as u64);
    });
    if me == 0 {
        println!("{seconds}");
    }
}
