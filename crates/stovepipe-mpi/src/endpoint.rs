//! [`EndpointState`]: the state of one endpoint as plain data: messages that came, operations that
//! wait, rounds, aborts, and who has left. It makes no MPI call and wakes nobody itself: what has
//! to happen outside the lock goes into [`After`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, hash_map};
use std::task::{Poll, Waker};

use stovepipe_transport::{Tag, TransportError};

use crate::frame::{self, Address, Frame, Head};
use crate::pool::Pool;
use crate::round::{Part, Round};

/// Work for when the lock is released, and frames to be sent.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) wake: Vec<Waker>,
    /// Replaced wakers: dropping one can run any code.
    pub(crate) stale: Vec<Waker>,
    /// Frames by the rank that they go to.
    pub(crate) send: Vec<(usize, Frame)>,
    /// Steps whose values need not be sent any more, with their channels.
    pub(crate) cut: Vec<(u32, u64)>,
}

impl After {
    /// Wakes who is to be woken. The frames must have been taken out.
    pub(crate) fn wake(self) {
        drop(self.stale);
        self.wake.into_iter().for_each(Waker::wake);
    }
}

/// The rounds that a peer has joined and not finished when it left.
type Owed = HashSet<(u64, u32)>;

/// A value that nobody has asked for yet.
struct Arrived {
    frame: Vec<u8>,
    /// Another one with the same tag came.
    twice: bool,
}

/// One gather, and the operation that waits for it.
struct Gather {
    round: Round,
    waiting: Option<Waker>,
}

/// The state of one endpoint of this process. It may outlive the endpoint, and may be there before
/// it.
pub(crate) struct EndpointState {
    channel: u32,
    me: usize,
    ranks: usize,
    /// The endpoint was dropped; its state stays for what it owes.
    left: bool,
    ended: Option<u64>,
    inbox: HashMap<(usize, Tag), Arrived>,
    /// One entry for each live receive that returned `Pending`.
    waiting: HashMap<(usize, Tag), Waker>,
    aborts: BTreeMap<u64, (usize, String)>,
    gathers: BTreeMap<(u64, u32), Gather>,
    /// By peer: what it owes, once it has left.
    gone: Vec<Option<Owed>>,
}

impl EndpointState {
    pub(crate) fn new(channel: u32, me: usize, ranks: usize) -> Self {
        Self {
            channel,
            me,
            ranks,
            left: false,
            ended: None,
            inbox: HashMap::new(),
            waiting: HashMap::new(),
            aborts: BTreeMap::new(),
            gathers: BTreeMap::new(),
            gone: vec![None; ranks],
        }
    }

    /// Whether somebody waits for a message.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.gathers.values().any(|gather| gather.waiting.is_some())
    }

    /// Whether nobody needs this state any more, neither here nor elsewhere.
    pub(crate) fn is_done(&self) -> bool {
        let alone = self.peers().all(|peer| self.gone[peer].is_some());
        self.left && (alone || self.gathers.is_empty())
    }

    /// Whether a value with this tag may be sent to `to`.
    pub(crate) fn may_send(&self, to: usize, tag: Tag) -> Result<(), TransportError> {
        self.open(tag.step)?;
        self.present(to)
    }

    /// `registered` is the receive's own memory of whether its waker is in `waiting`.
    pub(crate) fn poll_recv(
        &mut self,
        from: usize,
        tag: Tag,
        waker: &Waker,
        registered: &mut bool,
        after: &mut After,
    ) -> Poll<Result<Vec<u8>, TransportError>> {
        if let Err(error) = self.open(tag.step) {
            return Poll::Ready(Err(error));
        }
        if !*registered && self.waiting.contains_key(&(from, tag)) {
            return Poll::Ready(Err(TransportError::AlreadyReceiving { tag }));
        }
        if let Some(arrived) = self.inbox.remove(&(from, tag)) {
            return Poll::Ready(match arrived.twice {
                false => Ok(arrived.frame),
                true => Err(TransportError::Duplicate { tag }),
            });
        }
        if let Err(error) = self.present(from) {
            return Poll::Ready(Err(error));
        }
        after.stale.extend(self.waiting.insert((from, tag), waker.clone()));
        *registered = true;
        Poll::Pending
    }

    pub(crate) fn forget_recv(&mut self, from: usize, tag: Tag, after: &mut After) {
        after.stale.extend(self.waiting.remove(&(from, tag)));
    }

    /// `bytes` is the contribution on the first poll and `None` afterwards.
    pub(crate) fn poll_gather(
        &mut self,
        key @ (step, round): (u64, u32),
        bytes: &mut Option<Vec<u8>>,
        waker: &Waker,
        after: &mut After,
    ) -> Poll<Result<Vec<Vec<u8>>, TransportError>> {
        if let Err(error) = self.open(step) {
            return Poll::Ready(Err(error));
        }
        let (me, ranks) = (self.me, self.ranks);
        let gather = gather_of(&mut self.gathers, key);
        if let Some(bytes) = bytes.take() {
            if gather.round.is_joined() {
                return Poll::Ready(Err(TransportError::RoundTwice { step, round }));
            }
            let parts = gather.round.join(me, ranks, bytes);
            self.send_parts(key, parts, after);
        }
        let gather = gather_of(&mut self.gathers, key);
        if gather.round.is_complete(ranks) {
            return Poll::Ready(Ok(gather.round.take(me)));
        }
        if let Some(rank) = gather.round.nonsense_from() {
            let reason = "its part of a gather can't be read".to_owned();
            return Poll::Ready(Err(TransportError::Link { rank, reason }));
        }
        if let Some(rank) = gather.round.awaits(me, ranks)
            && self.gone[rank].as_ref().is_some_and(|owed| !owed.contains(&key))
        {
            return Poll::Ready(Err(TransportError::PeerGone { rank }));
        }
        after.stale.extend(gather.waiting.replace(waker.clone()));
        Poll::Pending
    }

    pub(crate) fn forget_gather(&mut self, key: (u64, u32), after: &mut After) {
        let waiting = self.gathers.get_mut(&key).and_then(|gather| gather.waiting.take());
        after.stale.extend(waiting);
    }

    pub(crate) fn abort(&mut self, step: u64, reason: &str, after: &mut After) {
        if self.open(step).is_err() {
            return;
        }
        self.note_abort(step, self.me, reason.to_owned(), after);
        self.to_all(Head::Abort { step }, reason.as_bytes(), after);
    }

    pub(crate) fn end_step(&mut self, step: u64, pool: &mut Pool, after: &mut After) {
        self.ended = self.ended.max(Some(step));
        for (_, arrived) in self.inbox.extract_if(|(_, tag), _| tag.step <= step) {
            pool.put(arrived.frame);
        }
        self.aborts.retain(|&aborted, _| aborted > step);
        self.wake(0..=step, after);
        // Others may still need this rank's help in a round that it joined.
        self.gathers.retain(|key, gather| {
            let waits = gather.waiting.take();
            after.stale.extend(waits);
            key.0 > step || (gather.round.is_joined() && !gather.round.is_complete(self.ranks))
        });
    }

    /// The endpoint was dropped.
    pub(crate) fn leave(&mut self, pool: &mut Pool, after: &mut After) {
        self.left = true;
        self.end_step(u64::MAX, pool, after);
        let owed = self.gathers.keys().flat_map(|(step, round)| {
            step.to_le_bytes().into_iter().chain(u64::from(*round).to_le_bytes())
        });
        let owed: Vec<u8> = owed.collect();
        self.to_all(Head::Leave, &owed, after);
    }

    /// A frame for this endpoint has come.
    pub(crate) fn deliver(
        &mut self,
        from: usize,
        head: Head,
        frame: Vec<u8>,
        pool: &mut Pool,
        after: &mut After,
    ) {
        let payload = frame::read(&frame).map(|(_, payload)| payload).unwrap_or_default();
        match head {
            Head::Value(tag) => return self.value(from, tag, frame, pool, after),
            Head::Gather { step, round, phase } => {
                self.part(from, (step, round), phase, payload, after);
            }
            Head::Abort { step } => {
                let reason = String::from_utf8_lossy(payload).into_owned();
                if !self.has_ended(step) && !self.aborts.contains_key(&step) {
                    self.note_abort(step, from, reason, after);
                }
            }
            Head::Leave => {
                let (words, _) = payload.as_chunks::<8>();
                let (pairs, _) = words.as_chunks::<2>();
                let owed = pairs.iter().map(|[step, round]| {
                    (u64::from_le_bytes(*step), u64::from_le_bytes(*round) as u32)
                });
                self.gone[from] = Some(owed.collect());
                self.wake(0..=u64::MAX, after);
            }
            Head::Beat | Head::Bye => {}
        }
        pool.put(frame);
    }

    fn value(&mut self, from: usize, tag: Tag, frame: Vec<u8>, pool: &mut Pool, after: &mut After) {
        if self.open(tag.step).is_err() {
            return pool.put(frame);
        }
        match self.inbox.entry((from, tag)) {
            hash_map::Entry::Occupied(mut first) => {
                first.get_mut().twice = true;
                pool.put(frame);
            }
            hash_map::Entry::Vacant(slot) => {
                slot.insert(Arrived { frame, twice: false });
            }
        }
        after.wake.extend(self.waiting.get(&(from, tag)).cloned());
    }

    fn part(&mut self, from: usize, key: (u64, u32), phase: u32, bytes: &[u8], after: &mut After) {
        let ended = self.has_ended(key.0);
        if self.aborts.contains_key(&key.0) || (ended && !self.gathers.contains_key(&key)) {
            return;
        }
        let place = (self.me, from, self.ranks);
        let gather = gather_of(&mut self.gathers, key);
        let parts = gather.round.receive(place, phase, bytes);
        let complete = gather.round.is_complete(self.ranks);
        if complete || gather.round.nonsense_from().is_some() {
            after.wake.extend(gather.waiting.clone());
        }
        self.send_parts(key, parts, after);
        if complete && ended {
            self.gathers.remove(&key);
        }
    }

    /// Whether this rank may still act in `step`.
    fn open(&self, step: u64) -> Result<(), TransportError> {
        if self.has_ended(step) {
            return Err(TransportError::Ended { step });
        }
        match self.aborts.get(&step) {
            Some((by, reason)) => {
                Err(TransportError::Aborted { step, by: *by, reason: reason.clone() })
            }
            None => Ok(()),
        }
    }

    fn has_ended(&self, step: u64) -> bool {
        self.ended.is_some_and(|ended| step <= ended)
    }

    fn present(&self, rank: usize) -> Result<(), TransportError> {
        match self.gone[rank] {
            Some(_) => Err(TransportError::PeerGone { rank }),
            None => Ok(()),
        }
    }

    fn note_abort(&mut self, step: u64, by: usize, reason: String, after: &mut After) {
        self.aborts.insert(step, (by, reason));
        after.cut.push((self.channel, step));
        self.wake(step..=step, after);
        self.gathers.retain(|key, _| key.0 != step);
    }

    /// Wakes whatever waits in these steps.
    fn wake(&self, steps: std::ops::RangeInclusive<u64>, after: &mut After) {
        let waiting = self.waiting.iter().filter(|((_, tag), _)| steps.contains(&tag.step));
        after.wake.extend(waiting.map(|(_, waker)| waker.clone()));
        let gathers = self.gathers.iter().filter(|((step, _), _)| steps.contains(step));
        after.wake.extend(gathers.filter_map(|(_, gather)| gather.waiting.clone()));
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.ranks).filter(move |&rank| rank != me)
    }

    fn to_all(&self, head: Head, payload: &[u8], after: &mut After) {
        let address = Address { channel: self.channel, head };
        after.send.extend(self.peers().map(|peer| (peer, whole(address, payload))));
    }

    fn send_parts(&self, (step, round): (u64, u32), parts: Vec<Part>, after: &mut After) {
        after.send.extend(parts.into_iter().map(|Part { to, phase, blocks }| {
            let head = Head::Gather { step, round, phase };
            (to, whole(Address { channel: self.channel, head }, &blocks))
        }));
    }
}

/// A whole frame in a new buffer, for payloads that are small and rare.
pub(crate) fn whole(address: Address, payload: &[u8]) -> Frame {
    let mut frame = frame::begin(Vec::new(), address);
    frame.extend(payload);
    Frame::end(frame, None)
}

fn gather_of(gathers: &mut BTreeMap<(u64, u32), Gather>, key: (u64, u32)) -> &mut Gather {
    match gathers.entry(key) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(slot) => slot.insert(Gather { round: Round::default(), waiting: None }),
    }
}

#[cfg(test)]
mod tests;
