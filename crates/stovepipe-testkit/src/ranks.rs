//! Pipelines of which each rank is built and driven apart, as in processes.

use std::thread;

use stovepipe::Packet;
use stovepipe::transport::InProcess;

/// Runs each rank on a thread of its own, with the rank's number and its endpoint of channels
/// within this process. Returns what each returned.
///
/// # Panics
///
/// If a rank panics.
pub fn on_ranks<R: Send + 'static>(
    ranks: usize,
    act: impl Fn(usize, InProcess<Packet>) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let endpoints = InProcess::group(ranks).into_iter().enumerate();
    let threads: Vec<_> = endpoints
        .map(|(rank, endpoint)| {
            let act = act.clone();
            thread::spawn(move || act(rank, endpoint))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}
