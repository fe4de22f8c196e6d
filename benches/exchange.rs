//! The price of exchanging boundaries, against MPI alone: a tensor is encoded, sent, received,
//! decoded and comes back the same way, between two processes; then the same bytes with MPI's
//! blocking send and receive. Last comes the first again with pauses between, as a step has them.
//! Starts itself with `mpirun` for each.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use futures::executor::block_on;
use mpi::traits::{Communicator, Destination, Source};
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::transport::{Direction, Tag, Transport};
use stovepipe::tune::Time;
use stovepipe::{Mpi, Packet};
use stovepipe_benches::{act_of_rank, round_trips};
use stovepipe_testkit::jobs::mpirun;

/// 1 MiB of floats.
const SHAPE: [usize; 2] = [512, 512];
const WARM_UP: usize = 50;
const MEASURED: usize = 400;
/// Each is measured so often, in turns.
const TURNS: usize = 5;
/// Between two exchanges, where a step computes.
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> Result<()> {
    match act_of_rank().as_deref() {
        Some("plain") => plain(Duration::ZERO),
        Some("plain-paused") => plain(PAUSE),
        Some("paused") => boundaries(PAUSE),
        Some(_) => boundaries(Duration::ZERO),
        None => compare(),
    }
}

fn compare() -> Result<()> {
    let (mut ratios, mut paused_ratios) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let (plain, boundaries) = (measure("plain")?, measure("boundaries")?);
        let (plain_paused, paused) = (measure("plain-paused")?, measure("paused")?);
        println!(
            "1 MiB there and back: MPI alone {:.0} us, encoded and decoded {:.0} us; with pauses \
             {:.0} us and {:.0} us",
            1e6 * plain,
            1e6 * boundaries,
            1e6 * plain_paused,
            1e6 * paused,
        );
        ratios.push(boundaries / plain);
        paused_ratios.push(paused / plain_paused);
    }
    let (ratio, paused) = (Time::of(ratios).median, Time::of(paused_ratios).median);
    println!("median ratio to MPI alone {ratio:.2}, of which at most 3 is the aim");
    println!("with pauses, after which MPI is slower as well, {paused:.2}; at most 2 is the aim");
    ensure!(ratio <= 3.0, "the exchange of boundaries is too slow");
    ensure!(paused <= 2.0, "the exchange of boundaries is too slow after a pause");
    Ok(())
}

/// Runs one of the two on two processes; the first prints the median of its round trips in seconds.
fn measure(what: &str) -> Result<f64> {
    let output = mpirun(2, &[what]).map_err(Error::msg)?.output();
    let output = output.context("mpirun can't be run: `cargo xtask setup mpi`")?;
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().with_context(|| format!("the ranks printed `{said}`"))
}

fn plain(pause: Duration) -> Result<()> {
    let universe = mpi::initialize().context("MPI can't be initialized")?;
    let world = universe.world();
    let is_first = world.rank() == 0;
    let peer = world.process_at_rank(1 - world.rank());
    let mut bytes = vec![1u8; SHAPE[0] * SHAPE[1] * size_of::<f32>()];
    let seconds = round_trips(WARM_UP, MEASURED, pause, || {
        if is_first {
            peer.send(&bytes[..]);
            peer.receive_into(&mut bytes[..]);
        } else {
            peer.receive_into(&mut bytes[..]);
            peer.send(&bytes[..]);
        }
        Ok(())
    })?;
    if is_first {
        println!("{seconds}");
    }
    Ok(())
}

fn boundaries(pause: Duration) -> Result<()> {
    let mpi = Mpi::world()?;
    let endpoint: &dyn Transport<Packet> = &mpi;
    let me = mpi.rank();
    let peer = 1 - me;
    let tag = |step: u64, from: usize| Tag {
        step,
        micro_batch: 0,
        from_stage: from as u32,
        to_stage: 1 - from as u32,
        direction: Direction::Forward,
    };
    let send =
        |step, tensor: Tensor<2>| block_on(endpoint.send(peer, tag(step, me), Packet::new(tensor)));
    let receive = |step| -> Result<Tensor<2>> {
        let packet = block_on(endpoint.recv(peer, tag(step, peer)))?;
        Ok(packet.into_value()?)
    };
    let mut ball = (me == 0).then(|| Tensor::<2>::ones(SHAPE, &Device::flex()));
    let mut step = 0;
    let seconds = round_trips(WARM_UP, MEASURED, pause, || {
        match ball.take() {
            Some(tensor) => {
                send(step, tensor)?;
                ball = Some(receive(step)?);
            }
            None => send(step, receive(step)?)?,
        }
        endpoint.end_step(step);
        step += 1;
        Ok(())
    })?;
    if me == 0 {
        println!("{seconds}");
    }
    Ok(())
}
