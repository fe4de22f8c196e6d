//! A program that starts MPI itself, and groups of a part of its processes.

use std::time::Duration;

use futures::executor::block_on;
use stovepipe::burn::tensor::Device;
use stovepipe::rsmpi::Threading;
use stovepipe::rsmpi::topology::Color;
use stovepipe::rsmpi::traits::Communicator;
use stovepipe::transport::{Transport, conformance};
use stovepipe::{Mpi, MpiError, measure_messages, rsmpi};

pub(crate) fn run(_: &[String]) -> Result<(), String> {
    let initialized = rsmpi::initialize_with_threading(Threading::Multiple);
    let (universe, provided) = initialized.ok_or("MPI runs already")?;
    if provided != Threading::Multiple {
        return Err(format!("this MPI provides {provided:?} only"));
    }
    let world = universe.world();
    let failed = |error: MpiError| error.to_string();
    // Who starts MPI itself is told what to do.
    match Mpi::world() {
        Err(MpiError::AlreadyInitialized) => {}
        other => return Err(format!("MPI was started twice: {other:?}")),
    }
    let color = Color::with_value(world.rank() % 2);
    let half = world.split_by_color(color).ok_or("in neither half")?;
    let part = Mpi::builder().silence(Duration::from_secs(20)).on(&half).map_err(failed)?;
    let all = Mpi::on(&world).map_err(failed)?;
    if (part.rank(), part.ranks()) != (world.rank() as usize / 2, world.size() as usize / 2) {
        return Err(format!("rank {} of {} in its half", part.rank(), part.ranks()));
    }
    // Both halves at once, and all of them.
    block_on(conformance::run_rank(&part, 0))?;
    block_on(conformance::run_rank(&all, 0))?;
    let gather = |endpoint: &dyn Transport<Vec<u8>>| {
        let mine = vec![world.rank() as u8];
        block_on(endpoint.all_gather(9000, 0, mine)).map_err(|error| error.to_string())
    };
    let ranks = |first: u8, step: usize| -> Vec<Vec<u8>> {
        (first..world.size() as u8).step_by(step).map(|rank| vec![rank]).collect()
    };
    if gather(&part)? != ranks((world.rank() % 2) as u8, 2) || gather(&all)? != ranks(0, 1) {
        return Err("groups mix".to_owned());
    }
    drop((part, all));
    // MPI is still the program's own.
    world.duplicate().rank();
    let again = Mpi::on(&half).map_err(failed)?;
    gather(&again)?;
    // Messages take time of their ranks, and all know how much.
    let endpoint = Mpi::on(&world).map_err(failed)?;
    let costs = measure_messages(&endpoint, &Device::flex()).map_err(|error| error.to_string())?;
    let handling = costs.of(1 << 20);
    if handling.send <= 0.0 || handling.receive <= 0.0 {
        return Err(format!("messages cost nothing: {costs:?}"));
    }
    println!(
        "1 MiB takes {:.0?} us to send and to receive",
        [handling.send, handling.receive].map(|s| 1e6 * s)
    );
    Ok(())
}
