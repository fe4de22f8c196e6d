//! [`Backoff`]: how long the thread for MPI rests between two looks. Cores are few, and the stages compute
//! on them.

use std::thread;
use std::time::{Duration, Instant};

/// For so long after something moved, it only yields while somebody waits.
const EAGER: Duration = Duration::from_micros(300);
/// The first rest; each further one is twice as long.
const SHORTEST: Duration = Duration::from_micros(20);
/// A message that nobody waits for yet is noticed this late at worst.
const LONGEST: Duration = Duration::from_micros(640);

/// Rests longer the longer nothing happens.
pub(crate) struct Backoff {
    moved: Instant,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { moved: Instant::now(), next: SHORTEST }
    }

    /// Something moved: the next look follows at once.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Nothing moved. `awaited` says whether somebody waits for a message, or one is under way. Whoever
    /// unparks the thread ends the rest.
    pub(crate) fn rest(&mut self, awaited: bool) {
        if awaited && self.moved.elapsed() < EAGER {
            thread::yield_now();
            return;
        }
        thread::park_timeout(self.next);
        self.next = (2 * self.next).min(LONGEST);
    }
}
