//! [`Backoff`]: how long the thread for MPI rests between two looks. Cores are few, and the stages
//! compute on them.

use std::hint;
use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

/// Says what there is to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outlook {
    /// A message is under way, which moves only while somebody looks.
    UnderWay,
    /// Somebody waits for a message, and so doesn't compute.
    Awaited,
    /// Nobody waits.
    Quiet,
}

/// For so long after something moved, messages under way are looked after without a pause.
const BUSY: Duration = Duration::from_micros(300);
/// For so long after something moved, the thread only yields while somebody waits: as long as
/// actions of a step take, where each rank has a core; otherwise others need the core.
const EAGER: Duration = Duration::from_millis(20);
const EAGER_WHERE_CROWDED: Duration = Duration::from_millis(1);
/// The first rest; each further one is twice as long.
const SHORTEST: Duration = Duration::from_micros(20);
/// A message that nobody waits for yet is noticed this late at worst.
const LONGEST: Duration = Duration::from_micros(640);
/// The same for one that somebody waits for, whose core has nothing else to do.
const LONGEST_AWAITED: Duration = Duration::from_micros(40);

/// Rests longer the longer nothing happens.
pub(crate) struct Backoff {
    eager: Duration,
    moved: Instant,
    next: Duration,
}

impl Backoff {
    /// For one of so many processes on this machine.
    pub(crate) fn new(processes: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let eager = if processes > cores { EAGER_WHERE_CROWDED } else { EAGER };
        Self { eager, moved: Instant::now(), next: SHORTEST }
    }

    /// Something moved: the next look follows at once.
    pub(crate) fn reset(&mut self) {
        (self.moved, self.next) = (Instant::now(), SHORTEST);
    }

    /// Nothing moved. Whoever unparks the thread ends the rest.
    pub(crate) fn rest(&mut self, outlook: Outlook) {
        let still = self.moved.elapsed();
        if outlook == Outlook::UnderWay && still < BUSY {
            hint::spin_loop();
        } else if outlook != Outlook::Quiet && still < self.eager {
            thread::yield_now();
        } else {
            let longest = if outlook == Outlook::Quiet { LONGEST } else { LONGEST_AWAITED };
            self.next = self.next.min(longest);
            thread::park_timeout(self.next);
            self.next = (2 * self.next).min(longest);
        }
    }
}
