//! The thread that makes all MPI calls of this process: starts MPI, sends what is in the outbox,
//! receives what is announced, sorts it into the endpoints, watches a neighbour, and ends MPI.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::topology::Communicator;

use crate::backoff::{Backoff, Outlook};
use crate::endpoint::{After, EndpointState, whole};
use crate::error::MpiError;
use crate::frame::{self, Address, Frame, Head};
use crate::incoming::{Arrivals, Nonsense};
use crate::limits::{Limits, SILENCE};
use crate::link::{Link, Sending};
use crate::outgoing::{Kind, Outgoing};
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
    outbox: VecDeque<(usize, Frame)>,
    /// Steps whose values need not be sent any more, with their channels.
    cut: Vec<(u32, u64)>,
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

/// A thread that makes MPI calls, and this process's place among those that it reaches.
pub(crate) struct MpiThread {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) limits: Limits,
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Thread,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl MpiThread {
    /// Wakes the thread, and waits until it has ended. If it panicked, it has said so.
    pub(crate) fn join(&self) {
        self.thread.unpark();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = handle.map(JoinHandle::join);
    }
}

/// Starts MPI, and a thread for all processes.
pub(crate) fn start_world(limits: Limits) -> Result<MpiThread, MpiError> {
    start(limits, |run| {
        let universe = mpi::initialize_with_threading(Threading::Funneled);
        let (universe, _) = universe.ok_or(MpiError::AlreadyInitialized)?;
        run(Link::new(universe.world().duplicate()));
        // Dropping the universe ends MPI.
        Ok(())
    })
}

/// Starts a thread for the processes of a communicator. All of them have to.
pub(crate) fn start_on(
    communicator: &impl Communicator,
    limits: Limits,
) -> Result<MpiThread, MpiError> {
    let provided = mpi::environment::threading_support();
    if provided != Threading::Multiple {
        return Err(MpiError::Threads { provided: format!("{provided:?}") });
    }
    let link = Link::new(communicator.duplicate());
    start(limits, move |run| {
        run(link);
        Ok(())
    })
}

/// Starts a thread that gets itself a link.
fn start(
    limits: Limits,
    work: impl FnOnce(&mut dyn FnMut(Link)) -> Result<(), MpiError> + Send + 'static,
) -> Result<MpiThread, MpiError> {
    let shared = Arc::new(Shared {
        state: Mutex::new(ProcessState {
            endpoints: HashMap::new(),
            pool: Pool::default(),
            outbox: VecDeque::new(),
            cut: Vec::new(),
            next_channel: 0,
            live: 0,
            closing: None,
        }),
    });
    let (sender, started) = mpsc::sync_channel(1);
    let of_thread = Arc::clone(&shared);
    let run = move || {
        let mut run = |link: Link| {
            let place = link.place();
            let _ = sender.send(Ok(place));
            Progress::new(place, limits, link, &of_thread).run();
        };
        if let Err(error) = work(&mut run) {
            let _ = sender.send(Err(error));
        }
    };
    let failed = |reason: String| MpiError::Thread { reason };
    let spawned = thread::Builder::new().name("stovepipe-mpi".to_owned()).spawn(run);
    let handle = spawned.map_err(|error| failed(error.to_string()))?;
    let thread = handle.thread().clone();
    let (rank, ranks) = started.recv().map_err(|error| failed(error.to_string()))??;
    let handle = Mutex::new(Some(handle));
    Ok(MpiThread { rank, ranks, limits, shared, thread, handle })
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
    sending: Vec<Sending>,
    /// By the rank that they go to.
    outgoing: Vec<Outgoing>,
    /// By the rank that they come from.
    arrivals: Vec<Arrivals>,
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
            outgoing: (0..ranks).map(|_| Outgoing::default()).collect(),
            arrivals: (0..ranks).map(|_| Arrivals::default()).collect(),
            byes: vec![false; ranks],
            beat: Instant::now(),
            heard: Instant::now(),
        }
    }

    fn run(mut self) {
        let mut backoff = Backoff::new(self.link.neighbours());
        let mut closing = None;
        loop {
            let (outbox, cut, awaited, close) = {
                let mut state = self.shared.lock();
                let awaited = state.endpoints.values().any(EndpointState::is_waiting);
                let (outbox, cut) = (mem::take(&mut state.outbox), mem::take(&mut state.cut));
                (outbox, cut, awaited, state.closing)
            };
            let mut moved = !outbox.is_empty();
            for (to, frame) in outbox {
                self.post(to, frame);
            }
            for (channel, step) in cut {
                self.outgoing.iter_mut().for_each(|outgoing| outgoing.cut(channel, step));
            }
            moved |= self.accept();
            moved |= self.deliver();
            moved |= self.finish_sends();
            moved |= self.send_pieces();
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
        let has_sent = self.sending.is_empty() && self.outgoing.iter().all(Outgoing::is_empty);
        if has_sent && self.byes.iter().all(|bye| *bye) {
            return true;
        }
        if panicked && since.elapsed() > GRACE {
            self.give_up("it panicked");
        }
        false
    }

    fn outlook(&self, awaited: bool) -> Outlook {
        let receives = self.arrivals.iter().any(|arrivals| !arrivals.is_empty());
        match (receives || !self.sending.is_empty(), awaited) {
            (true, _) => Outlook::UnderWay,
            (false, true) => Outlook::Awaited,
            (false, false) => Outlook::Quiet,
        }
    }

    /// Sends a frame, or lets it wait for its turn.
    fn post(&mut self, to: usize, frame: Frame) {
        if let Some(departure) = self.outgoing[to].push(frame) {
            self.sending.push(self.link.send(to, departure));
        }
    }

    /// Sends what has its turn of the frames that wait.
    fn send_pieces(&mut self) -> bool {
        let before = self.sending.len();
        for (to, outgoing) in self.outgoing.iter_mut().enumerate() {
            while let Some(departure) = outgoing.next() {
                self.sending.push(self.link.send(to, departure));
            }
        }
        self.sending.len() > before
    }

    /// Begins to receive what has been announced.
    fn accept(&mut self) -> bool {
        let mut any = false;
        while let Some(announced) = self.link.probe() {
            self.arrivals[announced.from].announce(announced);
            any = true;
        }
        for from in 0..self.ranks {
            if self.arrivals[from].is_empty() {
                continue;
            }
            let received = self.arrivals[from].receive(&self.link, &mut self.shared.lock().pool);
            if received.is_err() {
                self.refuse(from);
            }
        }
        any
    }

    /// Sorts in what has been received.
    fn deliver(&mut self) -> bool {
        let (mut any, mut come) = (false, Vec::new());
        for from in 0..self.ranks {
            if self.arrivals[from].is_empty() {
                continue;
            }
            match self.arrivals[from].look(&mut self.shared.lock().pool, &mut come) {
                Ok(moved) => {
                    // Every piece of a value is a sign of life.
                    if moved && from == self.before() {
                        self.heard = Instant::now();
                    }
                    any |= moved;
                }
                Err(Nonsense) => self.refuse(from),
            }
            for frame in come.drain(..) {
                self.sort_in(from, frame);
            }
        }
        any
    }

    /// Hands on a frame that has come.
    fn sort_in(&mut self, from: usize, frame: Vec<u8>) {
        match frame::read(&frame).map(|(address, _)| address) {
            None => self.refuse(from),
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

    fn finish_sends(&mut self) -> bool {
        let mut done = Vec::new();
        let mut index = 0;
        while index < self.sending.len() {
            match self.sending[index].is_done() {
                true => done.push(self.sending.swap_remove(index)),
                false => index += 1,
            }
        }
        let any = !done.is_empty();
        if any {
            let mut state = self.shared.lock();
            for sent in done {
                if sent.kind == Kind::Piece {
                    self.outgoing[sent.to].arrived(sent.bytes);
                }
                if let Some(buffer) = sent.into_buffer() {
                    state.pool.put(buffer);
                }
            }
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
            self.post(after, beat);
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
        let me = self.rank;
        for peer in (0..self.ranks).filter(|peer| *peer != me) {
            let frame = whole(Address { channel: 0, head }, &[]);
            self.post(peer, frame);
        }
    }

    fn refuse(&self, from: usize) -> ! {
        self.give_up(&format!("rank {from} sent something that can't be read"))
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
        self.take(after);
    }

    /// Takes what the thread is to do.
    pub(crate) fn take(&mut self, after: &mut After) {
        self.outbox.extend(after.send.drain(..));
        self.cut.append(&mut after.cut);
    }
}
