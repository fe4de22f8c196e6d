//! The time that messages take of their ranks, measured on a transport.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use futures::executor::block_on;
use stovepipe_transport::{Direction, Tag, Transport, TransportError};
use stovepipe_tune::{MessageCosts, Time};

use crate::value::packet::Packet;

/// The values of each message: 4 KiB and 4 MiB.
const SIZES: [usize; 2] = [1 << 10, 1 << 20];
const WARM_UP: u64 = 3;
const RUNS: u64 = 15;

/// Measures what messages take of the ranks that send and receive them, for
/// [`Cluster::messages`](stovepipe_tune::Cluster::messages).
///
/// Values on `device` go from the first rank to the second. What is timed is their encoding and
/// decoding, not their way.
///
/// Every rank of the group has to call it, on an endpoint made for this, and all get the same. With
/// a single rank messages cost nothing.
///
/// # Errors
///
/// [`TransportError`].
pub fn measure_messages(
    endpoint: &dyn Transport<Packet>,
    device: &Device,
) -> Result<MessageCosts, TransportError> {
    let me = endpoint.rank();
    if endpoint.ranks() == 1 {
        return Ok(MessageCosts::default());
    }
    let mut taken = [Vec::new(), Vec::new()];
    for step in 0..WARM_UP + RUNS {
        for (size, seconds) in (0u32..).zip(&mut taken) {
            let direction = Direction::Forward;
            let tag = Tag { step, micro_batch: size, from_stage: 0, to_stage: 1, direction };
            let time = match me {
                0 => {
                    let value = Packet::new(Tensor::<1>::ones([SIZES[size as usize]], device));
                    working(endpoint.send(1, tag, value))?.0
                }
                1 => working(endpoint.recv(0, tag))?.0,
                _ => 0.0,
            };
            seconds.extend((step >= WARM_UP).then_some(time));
            // The next message goes when this one is there.
            block_on(endpoint.all_gather(step, size, Vec::new()))?;
        }
        endpoint.end_step(step);
    }
    let [small, large] = taken.map(|seconds| Time::of(seconds).median);
    let [few, many] = SIZES.map(|values| (4 * values) as f64);
    let each_byte = ((large - small) / (many - few)).max(0.0);
    let message = (small - few * each_byte).max(0.0);
    let step = WARM_UP + RUNS;
    let mine = [message, each_byte].map(f64::to_le_bytes).concat();
    let all = block_on(endpoint.all_gather(step, 0, mine))?;
    endpoint.end_step(step);
    let read = |rank: usize| {
        let (times, _) = all.get(rank).map_or(&[][..], Vec::as_slice).as_chunks::<8>();
        let time = |place: usize| times.get(place).map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
        (time(0), time(1))
    };
    let ((send, send_byte), (receive, receive_byte)) = (read(0), read(1));
    Ok(MessageCosts { send, send_byte, receive, receive_byte })
}

/// The seconds that the last look at a future took, the one at which it was done, and its result.
/// Before that the message was on its way.
fn working<T>(
    future: impl Future<Output = Result<T, TransportError>>,
) -> Result<(f64, T), TransportError> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        let start = Instant::now();
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done.map(|value| (start.elapsed().as_secs_f64(), value)),
            // Nobody wakes this thread; it isn't what is timed.
            Poll::Pending => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}
