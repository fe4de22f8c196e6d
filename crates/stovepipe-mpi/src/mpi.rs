//! [`Mpi`]: this process's endpoint in a group of all processes of the job.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use mpi::topology::Communicator;
use stovepipe_transport::{Tag, Transport, TransportError, Wire};

use crate::endpoint::{After, EndpointState};
use crate::error::MpiError;
use crate::frame::{self, Address, Frame, Head};
use crate::limits::Limits;
use crate::pool::Pool;
use crate::progress::{self, MpiThread, ProcessState, endpoint_state};

/// MPI can be started once in a process, and ended once.
enum World {
    Unstarted,
    Started(Arc<MpiThread>),
    Ended,
}

static WORLD: Mutex<World> = Mutex::new(World::Unstarted);

/// This process's endpoint in a group of all processes that `mpirun` or `srun` started, or of those
/// of a [communicator](Self::on).
///
/// MPI starts with the first endpoint and ends when the last one is dropped: that waits until all
/// processes have come so far. So return from `main` rather than call [`std::process::exit`].
///
/// Several endpoints may exist, one after the other or at once, as long as every process makes as
/// many in the same order. The first of each process form a group, the second another, and so on.
///
/// # When processes fail
///
/// A process that is killed takes the job down through `mpirun`, which names its rank (and through
/// `srun` with `--kill-on-bad-exit`). The launcher may not notice, because a process was stopped or
/// a network is down. Then the next rank does: processes hear from each other every second, and the
/// one after a process that is silent for 15 seconds ends the job with a message that names it.
/// Every piece of a value counts as a sign of life, and signs of life pass long values, so that
/// slow links don't end a job. [`MpiBuilder::silence`] and the environment's
/// `STOVEPIPE_MPI_SILENCE` set another limit. One that panics gives the others 5 seconds to end by
/// themselves.
pub struct Mpi {
    running: Arc<MpiThread>,
    channel: u32,
    is_of_world: bool,
}

/// The settings of endpoints.
#[derive(Clone, Debug, Default)]
pub struct MpiBuilder {
    silence: Option<Duration>,
}

impl MpiBuilder {
    /// Sets how long a process may be silent before the job ends: from a second to a million, and
    /// the same in all processes. What is set here counts more than the environment.
    #[must_use]
    pub fn silence(self, silence: Duration) -> Self {
        Self { silence: Some(silence) }
    }

    /// An endpoint as [`Mpi::world`] makes it.
    ///
    /// # Errors
    ///
    /// As there, and [`MpiError::OtherLimits`] if an earlier endpoint has others.
    pub fn world(self) -> Result<Mpi, MpiError> {
        let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*world, World::Unstarted) {
            let limits = Limits::new(self.silence)?;
            *world = World::Started(Arc::new(progress::start_world(limits)?));
        }
        let World::Started(running) = &*world else {
            return Err(MpiError::Ended);
        };
        if self.silence.is_some_and(|silence| silence != running.limits.silence) {
            return Err(MpiError::OtherLimits { running: running.limits.silence });
        }
        Ok(Mpi::opened(Arc::clone(running), true))
    }

    /// An endpoint as [`Mpi::on`] makes it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn on(self, communicator: &impl Communicator) -> Result<Mpi, MpiError> {
        let limits = Limits::new(self.silence)?;
        Ok(Mpi::opened(Arc::new(progress::start_on(communicator, limits)?), false))
    }
}

impl Mpi {
    /// Settings other than the usual ones.
    #[must_use]
    pub fn builder() -> MpiBuilder {
        MpiBuilder::default()
    }

    /// An endpoint of a new group of all processes.
    ///
    /// # Errors
    ///
    /// [`MpiError`]. MPI itself ends the job if it can't start.
    pub fn world() -> Result<Self, MpiError> {
        Self::builder().world()
    }

    /// An endpoint of a new group of the processes of a communicator, for programs that start MPI
    /// themselves or want groups of a part of the processes. All of its processes have to ask for
    /// it.
    ///
    /// MPI must have been initialized with `Threading::Multiple`, as the endpoint has a thread of
    /// its own for its calls, and must not end before the endpoint is dropped. The group has a
    /// duplicate of the communicator to itself, and never ends MPI.
    ///
    /// ```no_run
    /// use stovepipe_mpi::Mpi;
    /// use stovepipe_mpi::rsmpi::{self, Threading, topology::Color, traits::Communicator};
    ///
    /// let (universe, _) = rsmpi::initialize_with_threading(Threading::Multiple).expect("MPI");
    /// let world = universe.world();
    /// // Two groups at once, of the even and of the odd ranks.
    /// let half = world.split_by_color(Color::with_value(world.rank() % 2)).expect("in one of them");
    /// let mpi = Mpi::on(&half)?;
    /// # Ok::<(), stovepipe_mpi::MpiError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MpiError::Threads`] if MPI was initialized for fewer threads, and those of every endpoint.
    pub fn on(communicator: &impl Communicator) -> Result<Self, MpiError> {
        Self::builder().on(communicator)
    }

    fn opened(running: Arc<MpiThread>, is_of_world: bool) -> Self {
        let (rank, ranks) = (running.rank, running.ranks);
        let mut process = running.shared.lock();
        let channel = process.next_channel;
        process.next_channel += 1;
        process.live += 1;
        // From now on a message for which there is no state is for an endpoint that is gone.
        endpoint_state(&mut process.endpoints, channel, rank, ranks);
        drop(process);
        Self { running, channel, is_of_world }
    }

    /// This process's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.running.rank
    }

    /// How many processes there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.running.ranks
    }

    /// Runs `act` on this endpoint's state and sends what it wants sent. Then, without the lock,
    /// wakes whom it wants woken.
    fn with<R>(&self, act: impl FnOnce(&mut EndpointState, &mut Pool, &mut After) -> R) -> R {
        let mut after = After::default();
        let (result, sends) = {
            let mut process = self.running.shared.lock();
            let ProcessState { endpoints, pool, .. } = &mut *process;
            let MpiThread { rank, ranks, .. } = *self.running;
            let state = endpoint_state(endpoints, self.channel, rank, ranks);
            let result = act(state, pool, &mut after);
            if state.is_done() {
                endpoints.remove(&self.channel);
            }
            let sends = !after.send.is_empty();
            process.take(&mut after);
            (result, sends)
        };
        if sends {
            self.running.thread.unpark();
        }
        after.wake();
        result
    }

    fn peer(&self, rank: usize) -> Result<(), TransportError> {
        let ranks = self.running.ranks;
        if rank >= ranks {
            Err(TransportError::NoSuchRank { rank, ranks })
        } else if rank == self.running.rank {
            Err(TransportError::SelfMessage { rank })
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl<V: Wire> Transport<V> for Mpi {
    fn rank(&self) -> usize {
        self.running.rank
    }

    fn ranks(&self) -> usize {
        self.running.ranks
    }

    async fn send(&self, to: usize, tag: Tag, value: V) -> Result<(), TransportError> {
        self.peer(to)?;
        let buffer =
            self.with(|state, pool, _| state.may_send(to, tag).map(|()| pool.take(frame::HEAD)));
        let address = Address { channel: self.channel, head: Head::Value(tag) };
        let mut buffer = frame::begin(buffer?, address);
        let tail = value.encode(&mut buffer);
        let tail =
            tail.map_err(|error| TransportError::Link { rank: to, reason: error.to_string() })?;
        let frame = Frame::end(buffer, Some(Box::new(tail)));
        self.with(|_, _, after| after.send.push((to, frame)));
        Ok(())
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<V, TransportError> {
        self.peer(from)?;
        let frame = Receive { endpoint: self, from, tag, registered: false }.await?;
        let payload = frame::read(&frame).map(|(_, payload)| payload).unwrap_or_default();
        let value = V::decode(payload);
        self.with(|_, pool, _| pool.put(frame));
        value.map_err(|error| TransportError::Link { rank: from, reason: error.to_string() })
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let key = (step, round);
        Gather { endpoint: self, key, bytes: Some(bytes), registered: false }.await
    }

    fn abort(&self, step: u64, reason: &str) {
        self.with(|state, _, after| state.abort(step, reason, after));
    }

    fn end_step(&self, step: u64) {
        self.with(|state, pool, after| state.end_step(step, pool, after));
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.with(|state, pool, after| state.leave(pool, after));
        // Nobody opens another endpoint of the world meanwhile.
        let world = self.is_of_world.then(|| WORLD.lock().unwrap_or_else(PoisonError::into_inner));
        let last = {
            let mut process = self.running.shared.lock();
            process.live -= 1;
            if process.live == 0 {
                process.closing = Some(std::thread::panicking());
            }
            process.live == 0
        };
        if last {
            if let Some(mut world) = world {
                *world = World::Ended;
            }
            self.running.join();
        }
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi")
            .field("rank", &self.running.rank)
            .field("ranks", &self.running.ranks)
            .finish_non_exhaustive()
    }
}

struct Receive<'a> {
    endpoint: &'a Mpi,
    from: usize,
    tag: Tag,
    registered: bool,
}

impl Future for Receive<'_> {
    type Output = Result<Vec<u8>, TransportError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (from, tag, registered) = (this.from, this.tag, &mut this.registered);
        let act = |state: &mut EndpointState, _: &mut Pool, after: &mut After| {
            state.poll_recv(from, tag, cx.waker(), registered, after)
        };
        this.endpoint.with(act)
    }
}

impl Drop for Receive<'_> {
    fn drop(&mut self) {
        if self.registered {
            self.endpoint.with(|state, _, after| state.forget_recv(self.from, self.tag, after));
        }
    }
}

struct Gather<'a> {
    endpoint: &'a Mpi,
    key: (u64, u32),
    bytes: Option<Vec<u8>>,
    registered: bool,
}

impl Future for Gather<'_> {
    type Output = Result<Vec<Vec<u8>>, TransportError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (key, bytes) = (this.key, &mut this.bytes);
        let act = |state: &mut EndpointState, _: &mut Pool, after: &mut After| {
            state.poll_gather(key, bytes, cx.waker(), after)
        };
        let outcome = this.endpoint.with(act);
        this.registered |= outcome.is_pending();
        outcome
    }
}

impl Drop for Gather<'_> {
    fn drop(&mut self) {
        if self.registered {
            self.endpoint.with(|state, _, after| state.forget_gather(self.key, after));
        }
    }
}
