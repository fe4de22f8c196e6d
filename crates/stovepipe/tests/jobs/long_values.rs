//! Values that are longer than a piece, and longer than 31 bits can count.

use futures::FutureExt;
use futures::executor::block_on;
use libtest_mimic::Trial;
use stovepipe::Mpi;
use stovepipe::transport::{Direction, Tag, Transport, TransportError};
use stovepipe_testkit::jobs::launch;

/// A hundred pieces or so: far more than are on their way at once.
const LONG: usize = 256 << 20;
/// More than 2 GiB.
const HUGE: usize = (2 << 30) + 12_345;
/// It is there three times at once: as it is sent, as it is received, and decoded.
const NEEDED: u64 = 10 << 30;

fn tag(step: u64, micro_batch: u32) -> Tag {
    Tag { step, micro_batch, from_stage: 0, to_stage: 1, direction: Direction::Forward }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|byte| (byte / 4096 + byte) as u8).collect()
}

pub(crate) fn tests() -> impl Iterator<Item = Trial> {
    ["overtaken", "huge"].into_iter().map(|name| {
        let test = move || Ok(launch(2, &["long-values", name])?.must_succeed()?);
        Trial::test(format!("long_values_{name}"), test)
    })
}

pub(crate) fn run(job: &[String]) -> Result<(), String> {
    let mpi = Mpi::world().map_err(|error| error.to_string())?;
    match job.first().map(String::as_str) {
        Some("huge") => huge(&mpi),
        _ => overtaken(&mpi),
    }
}

/// Short values, gathers and aborts pass a long value, and nothing of it is left after an abort.
fn overtaken(endpoint: &dyn Transport<Vec<u8>>) -> Result<(), String> {
    let said = |error: TransportError| error.to_string();
    if endpoint.rank() == 0 {
        block_on(endpoint.send(1, tag(1, 0), bytes(LONG))).map_err(said)?;
        block_on(endpoint.send(1, tag(1, 1), bytes(9))).map_err(said)?;
        block_on(endpoint.all_gather(1, 0, Vec::new())).map_err(said)?;
        // The other one has what is short; it takes the long one as well.
        block_on(endpoint.all_gather(1, 1, Vec::new())).map_err(said)?;
        endpoint.end_step(1);
        for step in [2, 3] {
            block_on(endpoint.send(1, tag(step, 0), bytes(LONG))).map_err(said)?;
            if step == 2 {
                endpoint.abort(step, "on purpose");
            } else {
                block_on(endpoint.all_gather(step, 0, Vec::new())).map_err(said)?;
            }
            endpoint.end_step(step);
        }
        return Ok(());
    }
    let short = block_on(endpoint.recv(0, tag(1, 1))).map_err(said)?;
    let mut long = endpoint.recv(0, tag(1, 0));
    if short != bytes(9) || (&mut long).now_or_never().is_some() {
        return Err("the long value came first".to_owned());
    }
    block_on(endpoint.all_gather(1, 0, Vec::new())).map_err(said)?;
    if block_on(long).map_err(said)? != bytes(LONG) {
        return Err("the long value is another one".to_owned());
    }
    block_on(endpoint.all_gather(1, 1, Vec::new())).map_err(said)?;
    endpoint.end_step(1);
    match block_on(endpoint.recv(0, tag(2, 0))) {
        Err(TransportError::Aborted { step: 2, by: 0, reason }) if reason == "on purpose" => {}
        other => return Err(format!("not aborted: {:?}", other.map(|value| value.len()))),
    }
    endpoint.end_step(2);
    // The next one comes whole behind the one that was cut.
    if block_on(endpoint.recv(0, tag(3, 0))).map_err(said)? != bytes(LONG) {
        return Err("the value after the abort is another one".to_owned());
    }
    block_on(endpoint.all_gather(3, 0, Vec::new())).map_err(said)?;
    endpoint.end_step(3);
    Ok(())
}

/// One value of more than 2 GiB, where memory allows.
fn huge(endpoint: &dyn Transport<Vec<u8>>) -> Result<(), String> {
    let said = |error: TransportError| error.to_string();
    let available = available();
    // Both look before either uses any.
    block_on(endpoint.all_gather(0, 0, Vec::new())).map_err(said)?;
    let all = available.to_le_bytes().to_vec();
    let all = block_on(endpoint.all_gather(0, 1, all)).map_err(said)?;
    let least = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
    if least.map(u64::from_le_bytes).min().unwrap_or(0) < NEEDED {
        eprintln!("not tried: {NEEDED} bytes of memory are needed, {available} are available");
        return Ok(());
    }
    if endpoint.rank() == 0 {
        block_on(endpoint.send(1, tag(0, 0), bytes(HUGE))).map_err(said)?;
    } else {
        let value = block_on(endpoint.recv(0, tag(0, 0))).map_err(said)?;
        let same = |(at, byte): (usize, &u8)| *byte == (at / 4096 + at) as u8;
        if value.len() != HUGE || !value.iter().enumerate().all(same) {
            return Err("the value is another one".to_owned());
        }
    }
    block_on(endpoint.all_gather(0, 2, Vec::new())).map_err(said)?;
    endpoint.end_step(0);
    Ok(())
}

/// The bytes of memory that are available, as far as the system says; none if it doesn't.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}
