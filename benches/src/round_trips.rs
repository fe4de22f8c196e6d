//! Messages there and back between two ranks of a job, timed.

use std::time::{Duration, Instant};

use anyhow::Result;
use stovepipe::tune::Time;
use stovepipe_testkit::jobs::AS_RANK;

/// The work of this process as a rank of a job; none if it is the one that starts jobs.
#[must_use]
pub fn act_of_rank() -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != AS_RANK).skip(1);
    arguments.next()
}

/// The median in seconds of so many round trips, after others that warm up, with a pause before
/// each.
///
/// # Errors
///
/// If a round trip fails.
pub fn round_trips(
    warm_up: usize,
    count: usize,
    pause: Duration,
    mut round_trip: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let mut seconds = Vec::with_capacity(count);
    for number in 0..warm_up + count {
        std::thread::sleep(pause);
        let start = Instant::now();
        round_trip()?;
        seconds.extend((number >= warm_up).then(|| start.elapsed().as_secs_f64()));
    }
    Ok(Time::of(seconds).median)
}
