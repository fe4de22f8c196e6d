//! The transport's conformance suite, on every process; and that several groups don't mix.

use futures::executor::block_on;
use stovepipe::Mpi;
use stovepipe::transport::{Direction, Tag, Transport, conformance};

pub(crate) fn run(_: &[String]) -> Result<(), String> {
    let world = || Mpi::world().map_err(|error| error.to_string());
    let (first, second) = (world()?, world()?);
    block_on(conformance::run_rank(&first, 0))?;
    // Step numbers begin again in a new group.
    block_on(conformance::run_rank(&second, 0))?;
    drop(first);
    let third = world()?;
    block_on(conformance::run_rank(&third, 1000))?;
    large(&third)
}

/// Messages that MPI moves only inside its calls, both ways at once and more than there are
/// buffers.
fn large(endpoint: &dyn Transport<Vec<u8>>) -> Result<(), String> {
    let (me, ranks) = (endpoint.rank(), endpoint.ranks());
    if ranks == 1 {
        return Ok(());
    }
    let step = 5000;
    let tag = |from: usize, to: usize, micro_batch| Tag {
        step,
        micro_batch,
        from_stage: from as u32,
        to_stage: to as u32,
        direction: Direction::Forward,
    };
    let bytes = |from: usize, m: u32| {
        let length = 9_000_000 + 1000 * from + m as usize;
        (0..length).map(|i| (i * 7 + from + m as usize) as u8).collect::<Vec<u8>>()
    };
    let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let all = async {
        for m in 0..8 {
            endpoint.send(next, tag(me, next, m), bytes(me, m)).await?;
        }
        for m in (0..8).rev() {
            let got = endpoint.recv(previous, tag(previous, me, m)).await?;
            assert!(got == bytes(previous, m), "other bytes");
        }
        endpoint.all_gather(step, 0, Vec::new()).await
    };
    block_on(all).map_err(|error| error.to_string())?;
    endpoint.end_step(step);
    Ok(())
}
