//! The thread that makes all MPI calls of this process: starts MPI, sends what is in the outbox,
//! receives what is announced, sorts it into the endpoints, watches a neighbour, and ends MPI.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::topology::Communicator;

use crate::backoff::{Backoff, Outlook};
use crate::endpoint::{After, EndpointState, whole};
use crate::error::MpiError;
use crate::frame::{self, Address, Frame, Head};
use crate::limits::{Limits, SILENCE};
use crate::link::{Link, UnderWay};
use crate::pool::Pool;

/// How long a process that panicked waits for others to say what they have to say.
const GRACE: Duration = Duration::from_secs(5);
/// The job's exit status where this crate ends it.
const FAILED: i32 = 70;

/// All that the endpoints of this process share with the thread that makes the calls.
pub(crate) struct Shared {
    state: Mutex<ProcessState>,
}

/// Everything that endpoints and the thread both touch.
pub(crate) struct ProcessState {
    /// By channel: the number of the endpoint, the same in every process.
    pub(crate) endpoints: HashMap<u32, EndpointState>,
    pub(crate) pool: Pool,
    pub(crate) outbox: VecDeque<(usize, Frame)>,
    /// The number of the next endpoint.
    pub(crate) next_channel: u32,
    /// Endpoints that haven't been dropped.
    pub(crate) live: usize,
    /// No endpoint is left; whether that is because of a panic.
    pub(crate) closing: Option<bool>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ProcessState> {
        // Nothing of a caller's runs under the lock, so its data is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running MPI: this process's place in the job, and its thread.
pub(crate) struct MpiThread {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Thread,
    pub(crate) handle: JoinHandle<()>,
}

/// Starts MPI.
pub(crate) fn start() -> Result<MpiThread, MpiError> {
    let limits = Limits::from_env()?;
    let shared = Arc::new(Shared {
        state: Mutex::new(ProcessState {
            endpoints: HashMap::new(),
            pool: Pool::default(),
            outbox: VecDeque::new(),
            next_channel: 0,
            live: 0,
            closing: None,
        }),
    });
    let (sender, started) = mpsc::sync_channel(1);
    let of_thread = Arc::clone(&shared);
    let run = move || {
        let universe = mpi::initialize_with_threading(Threading::Funneled);
        let Some((universe, _)) = universe else {
            let _ = sender.send(Err(MpiError::AlreadyInitialized));
            return;
        };
        let world = universe.world();
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        let link = Link::new(world.duplicate());
        let _ = sender.send(Ok((rank, ranks)));
        Progress::new((rank, ranks), limits, link, &of_thread).run();
        // Dropping the universe ends MPI.
    };
    let failed = |reason: String| MpiError::Thread { reason };
    let spawned = thread::Builder::new().name("stovepipe-mpi".to_owned()).spawn(run);
    let handle = spawned.map_err(|error| failed(error.to_string()))?;
    let thread = handle.thread().clone();
    let (rank, ranks) = started.recv().map_err(|error| failed(error.to_string()))??;
    Ok(MpiThread { rank, ranks, shared, thread, handle })
}

/// The state of an endpoint, made by whoever needs it first: the endpoint itself, or a message from
/// another process.
pub(crate) fn endpoint_state(
    endpoints: &mut HashMap<u32, EndpointState>,
    channel: u32,
    me: usize,
    ranks: usize,
) -> &mut EndpointState {
    endpoints.entry(channel).or_insert_with(|| EndpointState::new(channel, me, ranks))
}

/// All that the thread keeps for itself.
struct Progress<'a> {
    rank: usize,
    ranks: usize,
    limits: Limits,
    link: Link,
    shared: &'a Shared,
    sending: Vec<UnderWay>,
    /// By sender, so that frames are delivered in the order in which they were sent.
    receiving: Vec<VecDeque<UnderWay>>,
    /// Processes that said they are done.
    byes: Vec<bool>,
    beat: Instant,
    heard: Instant,
}

impl<'a> Progress<'a> {
    fn new((rank, ranks): (usize, usize), limits: Limits, link: Link, shared: &'a Shared) -> Self {
        Self {
            rank,
            ranks,
            limits,
            link,
            shared,
            sending: Vec::new(),
            receiving: (0..ranks).map(|_| VecDeque::new()).collect(),
            byes: vec![false; ranks],
            beat: Instant::now(),
            heard: Instant::now(),
        }
    }

    fn run(mut self) {
        let mut backoff = Backoff::new();
        let mut closing = None;
        loop {
            let (outbox, awaited, close) = {
                let mut state = self.shared.lock();
                let awaited = state.endpoints.values().any(EndpointState::is_waiting);
                (std::mem::take(&mut state.outbox), awaited, state.closing)
            };
            let mut moved = !outbox.is_empty();
            for (to, frame) in outbox {
                self.sending.push(self.link.send(to, frame));
            }
            moved |= self.accept();
            moved |= self.deliver();
            moved |= self.finish_sends();
            self.watch();
            if let Some(panicked) = close
                && self.close(&mut closing, panicked)
            {
                return;
            }
            if moved {
                backoff.reset();
            } else {
                backoff.rest(self.outlook(awaited));
            }
        }
    }

    /// Says that this process is done, and whether all have said so. `closing` is when it first
    /// did.
    fn close(&mut self, closing: &mut Option<Instant>, panicked: bool) -> bool {
        let since = *closing.get_or_insert_with(|| {
            self.say_to_all(Head::Bye);
            Instant::now()
        });
        self.byes[self.rank] = true;
        if self.sending.is_empty() && self.byes.iter().all(|bye| *bye) {
            return true;
        }
        if panicked && since.elapsed() > GRACE {
            self.give_up("it panicked");
        }
        false
    }

    fn outlook(&self, awaited: bool) -> Outlook {
        let receives = self.receiving.iter().any(|queue| !queue.is_empty());
        match (receives || !self.sending.is_empty(), awaited) {
            (true, _) => Outlook::UnderWay,
            (false, true) => Outlook::Awaited,
            (false, false) => Outlook::Quiet,
        }
    }

    /// Begins to receive what has been announced.
    fn accept(&mut self) -> bool {
        let mut any = false;
        while let Some(announced) = self.link.probe() {
            let buffer = self.shared.lock().pool.take(announced.bytes());
            let receiving = self.link.receive(announced, buffer);
            self.receiving[receiving.peer()].push_back(receiving);
            any = true;
        }
        any
    }

    /// Sorts in what has been received.
    fn deliver(&mut self) -> bool {
        let mut arrived = Vec::new();
        for (from, queue) in self.receiving.iter_mut().enumerate() {
            while queue.front_mut().is_some_and(UnderWay::is_done) {
                arrived.extend(queue.pop_front().map(|done| (from, done.into_buffer())));
            }
        }
        let any = !arrived.is_empty();
        for (from, frame) in arrived {
            if from == self.before() {
                self.heard = Instant::now();
            }
            match frame::read(&frame).map(|(address, _)| address) {
                None => self.give_up(&format!("rank {from} sent something that can't be read")),
                Some(Address { head: Head::Bye, .. }) => self.byes[from] = true,
                Some(Address { head: Head::Beat, .. }) => self.shared.lock().pool.put(frame),
                Some(Address { channel, head }) => {
                    let mut after = After::default();
                    let mut state = self.shared.lock();
                    state.deliver(from, (self.rank, self.ranks), channel, head, frame, &mut after);
                    drop(state);
                    after.wake();
                }
            }
        }
        any
    }

    fn finish_sends(&mut self) -> bool {
        let mut done = Vec::new();
        let mut index = 0;
        while index < self.sending.len() {
            match self.sending[index].is_done() {
                true => done.push(self.sending.swap_remove(index).into_buffer()),
                false => index += 1,
            }
        }
        let any = !done.is_empty();
        if any {
            let mut state = self.shared.lock();
            done.into_iter().for_each(|buffer| state.pool.put(buffer));
        }
        any
    }

    /// The process that this one watches. Each watches one and is watched by one.
    fn before(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// Tells the next process that this one is alive, and looks whether the one before is.
    fn watch(&mut self) {
        if self.ranks == 1 {
            return;
        }
        let after = (self.rank + 1) % self.ranks;
        if self.beat.elapsed() > self.limits.beat && !self.byes[self.rank] {
            self.beat = Instant::now();
            let beat = whole(Address { channel: 0, head: Head::Beat }, &[]);
            self.sending.push(self.link.send(after, beat));
        }
        if self.heard.elapsed() > self.limits.silence && !self.byes[self.before()] {
            self.give_up(&format!(
                "rank {} has been silent for {} seconds: it was stopped or killed, or its \
                 connection broke; {SILENCE} sets another limit",
                self.before(),
                self.limits.silence.as_secs_f64()
            ));
        }
    }

    fn say_to_all(&mut self, head: Head) {
        for peer in (0..self.ranks).filter(|peer| *peer != self.rank) {
            let frame = whole(Address { channel: 0, head }, &[]);
            self.sending.push(self.link.send(peer, frame));
        }
    }

    fn give_up(&self, reason: &str) -> ! {
        eprintln!("stovepipe: rank {} ends the job: {reason}", self.rank);
        self.link.abort(FAILED)
    }
}

impl ProcessState {
    /// Hands a frame to its endpoint, which this process may not have opened yet.
    fn deliver(
        &mut self,
        from: usize,
        (me, ranks): (usize, usize),
        channel: u32,
        head: Head,
        frame: Vec<u8>,
        after: &mut After,
    ) {
        // Nobody wants a frame for an endpoint that is gone.
        if channel < self.next_channel && !self.endpoints.contains_key(&channel) {
            return self.pool.put(frame);
        }
        let endpoint = endpoint_state(&mut self.endpoints, channel, me, ranks);
        endpoint.deliver(from, head, frame, &mut self.pool, after);
        if endpoint.is_done() {
            self.endpoints.remove(&channel);
        }
        self.outbox.extend(after.send.drain(..));
    }
}
