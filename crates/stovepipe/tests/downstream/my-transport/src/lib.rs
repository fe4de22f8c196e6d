//! A transport that knows nothing of stovepipe except `stovepipe-transport`: ranks as processes, on
//! one machine or many, that talk over TCP.
//!
//! Each process has a whole group of [`InProcess`] endpoints to itself, its mailboxes. One endpoint
//! belongs to its rank, the others stand for the peers:
//!
//! ```text
//! 1. this rank acts  ──▶ its own endpoint says whether it may, and remembers
//! 2.                 ──▶ a frame goes to the peers that it concerns
//! 3. a frame arrives ──▶ a thread does on the peer's endpoint what the peer did
//! 4. a link closes   ──▶ the peer's endpoint is dropped: the peer is gone
//! ```
//!
//! Waiting, waking, aborting and ending thus follow rules that `InProcess` keeps already. Nothing
//! here encrypts, connects again, or notices a peer that hangs without closing its link.

mod frame;
mod link;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use async_trait::async_trait;
use stovepipe_transport::{InProcess, Tag, Transport, TransportError, Wire};

use crate::frame::Frame;

/// One rank's endpoint in a group of ranks with a link between each two.
pub struct Tcp {
    mailboxes: InProcess<Vec<u8>>,
    /// By rank; this one has no link to itself.
    peers: Vec<Option<Peer>>,
}

struct Peer {
    frames: Sender<Frame>,
    writer: JoinHandle<()>,
}

impl Tcp {
    /// Joins the group of ranks that listen at `addresses`, in rank order, as the one of them that
    /// `listener` belongs to. Returns when all have joined.
    ///
    /// # Errors
    ///
    /// If there is no such rank, a peer can't be reached, or a stranger connects.
    pub fn join(rank: usize, listener: &TcpListener, addresses: &[SocketAddr]) -> io::Result<Self> {
        let (mut own, mut peers) = (None, Vec::new());
        let streams = link::with_all(rank, listener, addresses)?;
        let stand_ins = StandIns::default();
        for (endpoint, stream) in InProcess::group(addresses.len()).into_iter().zip(streams) {
            let Some(stream) = stream else {
                own = Some(endpoint);
                peers.push(None);
                continue;
            };
            let (frames, writer) = link::writer(stream.try_clone()?);
            let peer = StandIn::new(endpoint, &stand_ins);
            link::reader(stream, move |frame| peer.act(frame, rank)); // 4: drops it
            peers.push(Some(Peer { frames, writer }));
        }
        let no_rank = || io::Error::other(format!("no rank {rank} among {}", addresses.len()));
        Ok(Self { mailboxes: own.ok_or_else(no_rank)?, peers })
    }

    /// A group whose ranks all live in this process, in rank order.
    ///
    /// # Errors
    ///
    /// If this machine can't listen or connect.
    pub fn on_one_machine(ranks: usize) -> io::Result<Vec<Self>> {
        let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listeners: Vec<_> = (0..ranks).map(listen).collect::<io::Result<_>>()?;
        let addresses = listeners.iter().map(TcpListener::local_addr);
        let addresses: &Vec<_> = &addresses.collect::<io::Result<_>>()?;
        thread::scope(|scope| {
            let join =
                |(rank, listener)| scope.spawn(move || Self::join(rank, listener, addresses));
            let joining: Vec<_> = listeners.iter().enumerate().map(join).collect();
            let failed = |_| Err(io::Error::other("a rank panicked while it joined"));
            joining.into_iter().map(|rank| rank.join().unwrap_or_else(failed)).collect()
        })
    }

    /// By whom a step was aborted and why, as far as this rank knows.
    fn aborted(&self, step: u64) -> Option<(usize, String)> {
        match poll_once(&mut self.mailboxes.all_gather(step, u32::MAX, Vec::new())) {
            Poll::Ready(Err(TransportError::Aborted { by, reason, .. })) => Some((by, reason)),
            _ => None,
        }
    }

    fn tell(&self, to: usize, frame: Frame) -> Result<(), TransportError> {
        let sent = self.peers[to].as_ref().and_then(|peer| peer.frames.send(frame).ok());
        sent.ok_or_else(|| TransportError::Link { rank: to, reason: "it is closed".to_owned() })
    }

    /// Tells all peers. Of one that is gone the mailboxes know.
    fn tell_all(&self, frame: impl Fn() -> Frame) {
        for peer in self.peers.iter().flatten() {
            let _ = peer.frames.send(frame());
        }
    }
}

#[async_trait]
impl<V: Wire> Transport<V> for Tcp {
    fn rank(&self) -> usize {
        Transport::rank(&self.mailboxes)
    }

    fn ranks(&self) -> usize {
        Transport::ranks(&self.mailboxes)
    }

    async fn send(&self, to: usize, tag: Tag, value: V) -> Result<(), TransportError> {
        // 1: an empty message lies in the peer's mailbox here until the peer ends the step.
        self.mailboxes.send(to, tag, Vec::new()).await?;
        let mut bytes = Vec::new();
        let tail = value.encode(&mut bytes);
        let tail = tail.map_err(|e| TransportError::Link { rank: to, reason: e.to_string() })?;
        bytes.extend_from_slice(tail.as_ref());
        self.tell(to, Frame::Message(tag, bytes)) // 2
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<V, TransportError> {
        // No `await` after this one: dropped before, the message still lies in the mailbox.
        let bytes = self.mailboxes.recv(from, tag).await?;
        let value = V::decode(&bytes);
        value.map_err(|e| TransportError::Link { rank: from, reason: e.to_string() })
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let mut gathered = self.mailboxes.all_gather(step, round, bytes.clone());
        let first = poll_once(&mut gathered); // 1
        if !matches!(first, Poll::Ready(Err(_))) {
            self.tell_all(|| Frame::Gather { step, round, bytes: bytes.clone() }); // 2
        }
        match first {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => gathered.await,
        }
    }

    fn abort(&self, step: u64, reason: &str) {
        self.mailboxes.abort(step, reason);
        self.tell_all(|| Frame::Abort { step, reason: reason.to_owned() });
    }

    fn end_step(&self, step: u64) {
        // A peer may hear of the end before it hears of the abort, which comes over another link.
        let aborted = self.aborted(step);
        self.mailboxes.end_step(step);
        self.tell_all(|| Frame::End { step, aborted: aborted.clone() });
    }
}

/// The endpoints that stand for the peers, by rank, as long as their links are open.
type StandIns = Arc<Mutex<BTreeMap<usize, Arc<InProcess<Vec<u8>>>>>>;

/// The endpoint that stands for one peer.
struct StandIn {
    rank: usize,
    all: StandIns,
}

impl StandIn {
    fn new(endpoint: InProcess<Vec<u8>>, all: &StandIns) -> Self {
        let rank = Transport::rank(&endpoint);
        let all = Arc::clone(all);
        lock(&all).insert(rank, Arc::new(endpoint));
        Self { rank, all }
    }

    /// 3: does on the endpoint what the peer did. If that fails, this rank has ended or aborted the
    /// step and asks no more.
    fn act(&self, frame: Frame, me: usize) {
        let endpoint = |rank: usize| lock(&self.all).get(&rank).cloned();
        let Some(peer) = endpoint(self.rank) else { return };
        match frame {
            Frame::Message(tag, bytes) => {
                let _ = poll_once(&mut peer.send(me, tag, bytes));
            }
            Frame::Gather { step, round, bytes } => {
                // What the first poll contributes stands, though the future is dropped.
                let _ = poll_once(&mut peer.all_gather(step, round, bytes));
            }
            Frame::Abort { step, reason } => peer.abort(step, &reason),
            Frame::End { step, aborted } => {
                if let Some((by, reason)) = aborted
                    && let Some(other) = endpoint(by)
                {
                    other.abort(step, &reason);
                }
                peer.end_step(step);
            }
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.rank);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

impl Drop for Tcp {
    /// Waits until the peers have been sent everything.
    fn drop(&mut self) {
        for Peer { frames, writer } in self.peers.drain(..).flatten() {
            drop(frames);
            let _ = writer.join();
        }
    }
}
