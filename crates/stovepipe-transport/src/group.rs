//! [`Group`]: what the endpoints of one process share, as plain data under one lock:
//! mailboxes, rounds of the collective, abort marks, and who has ended what. It never
//! blocks, wakes or drops a value itself: what has to happen outside the lock goes into
//! [`After`].

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::task::{Poll, Waker};

use crate::error::TransportError;
use crate::tag::Tag;

/// Work for when the lock is released. Wakers and the drop of a value can run any code,
/// including code that takes the lock again.
pub(crate) struct After<V> {
    wake: Vec<Waker>,
    stale: Vec<Waker>,
    discarded: Vec<V>,
}

impl<V> After<V> {
    pub(crate) fn new() -> Self {
        Self { wake: Vec::new(), stale: Vec::new(), discarded: Vec::new() }
    }

    pub(crate) fn run(self) {
        drop(self.stale);
        for waker in self.wake {
            waker.wake();
        }
        drop(self.discarded);
    }
}

type Address = (usize, Tag);

struct Member<V> {
    gone: bool,
    ended: Option<u64>,
    inbox: HashMap<Address, V>,
    /// One entry per live receive that returned `Pending`. Only the receive itself takes
    /// it out, so that a second receive for the same message can be recognized.
    waiting: HashMap<Address, Waker>,
}

impl<V> Member<V> {
    fn has_ended(&self, step: u64) -> bool {
        self.ended.is_some_and(|ended| step <= ended)
    }
}

struct Abort {
    by: usize,
    reason: String,
}

struct Round {
    parts: Vec<Option<Vec<u8>>>,
    waiting: Vec<Option<Waker>>,
}

pub(crate) struct Group<V> {
    members: Vec<Member<V>>,
    aborts: BTreeMap<u64, Abort>,
    rounds: BTreeMap<(u64, u32), Round>,
}

impl<V> Group<V> {
    pub(crate) fn new(ranks: usize) -> Self {
        let members = (0..ranks).map(|_| Member {
            gone: false,
            ended: None,
            inbox: HashMap::new(),
            waiting: HashMap::new(),
        });
        Self { members: members.collect(), aborts: BTreeMap::new(), rounds: BTreeMap::new() }
    }

    /// Whether `me` may still act in `step`.
    fn open(&self, me: usize, step: u64) -> Result<(), TransportError> {
        if self.members[me].has_ended(step) {
            return Err(TransportError::Ended { step });
        }
        match self.aborts.get(&step) {
            Some(abort) => {
                Err(TransportError::Aborted { step, by: abort.by, reason: abort.reason.clone() })
            }
            None => Ok(()),
        }
    }

    /// Whether `peer` can still do its part in `step`.
    fn present(&self, peer: usize, step: u64) -> Result<(), TransportError> {
        let member = &self.members[peer];
        if member.gone {
            Err(TransportError::PeerGone { rank: peer })
        } else if member.has_ended(step) {
            Err(TransportError::PeerEnded { rank: peer, step })
        } else {
            Ok(())
        }
    }

    pub(crate) fn send(
        &mut self,
        me: usize,
        to: usize,
        tag: Tag,
        value: V,
        after: &mut After<V>,
    ) -> Result<(), TransportError> {
        let allowed = self.open(me, tag.step).and_then(|()| self.present(to, tag.step));
        if let Err(error) = allowed {
            after.discarded.push(value);
            return Err(error);
        }
        let member = &mut self.members[to];
        match member.inbox.entry((me, tag)) {
            Entry::Occupied(_) => {
                after.discarded.push(value);
                return Err(TransportError::Duplicate { tag });
            }
            Entry::Vacant(slot) => slot.insert(value),
        };
        after.wake.extend(member.waiting.get(&(me, tag)).cloned());
        Ok(())
    }

    /// `registered` is the receive's own memory of whether its waker is in `waiting`.
    pub(crate) fn poll_recv(
        &mut self,
        me: usize,
        from: usize,
        tag: Tag,
        waker: &Waker,
        registered: &mut bool,
        after: &mut After<V>,
    ) -> Poll<Result<V, TransportError>> {
        if let Err(error) = self.open(me, tag.step) {
            return Poll::Ready(Err(error));
        }
        let absent = self.present(from, tag.step).err();
        let member = &mut self.members[me];
        if !*registered && member.waiting.contains_key(&(from, tag)) {
            return Poll::Ready(Err(TransportError::AlreadyReceiving { tag }));
        }
        if let Some(value) = member.inbox.remove(&(from, tag)) {
            return Poll::Ready(Ok(value));
        }
        if let Some(error) = absent {
            return Poll::Ready(Err(error));
        }
        let replaced = member.waiting.insert((from, tag), waker.clone());
        after.stale.extend(replaced);
        *registered = true;
        Poll::Pending
    }

    pub(crate) fn forget_recv(&mut self, me: usize, from: usize, tag: Tag, after: &mut After<V>) {
        let waker = self.members[me].waiting.remove(&(from, tag));
        after.stale.extend(waker);
    }

    /// `bytes` is the contribution on the first poll and `None` afterwards.
    pub(crate) fn poll_all_gather(
        &mut self,
        me: usize,
        (step, round): (u64, u32),
        bytes: &mut Option<Vec<u8>>,
        waker: &Waker,
        after: &mut After<V>,
    ) -> Poll<Result<Vec<Vec<u8>>, TransportError>> {
        if let Err(error) = self.open(me, step) {
            return Poll::Ready(Err(error));
        }
        let ranks = self.members.len();
        let current = self
            .rounds
            .entry((step, round))
            .or_insert_with(|| Round { parts: vec![None; ranks], waiting: vec![None; ranks] });
        let joins = bytes.is_some();
        if let Some(bytes) = bytes.take() {
            if current.parts[me].is_some() {
                return Poll::Ready(Err(TransportError::RoundTwice { step, round }));
            }
            current.parts[me] = Some(bytes);
        }
        if current.parts.iter().all(Option::is_some) {
            let parts = current.parts.iter().flatten().cloned().collect();
            if joins {
                after.wake.extend(current.waiting.iter().flatten().cloned());
            }
            return Poll::Ready(Ok(parts));
        }
        let parts = &self.rounds[&(step, round)].parts;
        let mut missing = (0..ranks).filter(|&peer| parts[peer].is_none());
        if let Some(error) = missing.find_map(|peer| self.present(peer, step).err()) {
            return Poll::Ready(Err(error));
        }
        if let Some(current) = self.rounds.get_mut(&(step, round)) {
            let replaced = current.waiting[me].replace(waker.clone());
            after.stale.extend(replaced);
        }
        Poll::Pending
    }

    pub(crate) fn forget_all_gather(&mut self, me: usize, round: (u64, u32), after: &mut After<V>) {
        if let Some(round) = self.rounds.get_mut(&round) {
            after.stale.extend(round.waiting[me].take());
        }
    }

    pub(crate) fn abort(&mut self, me: usize, step: u64, reason: &str, after: &mut After<V>) {
        if self.open(me, step).is_err() {
            return;
        }
        let reason = reason.to_string();
        self.aborts.insert(step, Abort { by: me, reason });
        for member in &self.members {
            let affected = member.waiting.iter().filter(|((_, tag), _)| tag.step == step);
            after.wake.extend(affected.map(|(_, waker)| waker.clone()));
        }
        self.wake_rounds(step..=step, after);
    }

    pub(crate) fn end_step(&mut self, me: usize, step: u64, after: &mut After<V>) {
        let member = &mut self.members[me];
        member.ended = member.ended.max(Some(step));
        let dropped = member.inbox.extract_if(|(_, tag), _| tag.step <= step);
        after.discarded.extend(dropped.map(|(_, value)| value));
        self.wake_dependants(me, step, after);
        self.release(after);
    }

    pub(crate) fn leave(&mut self, me: usize, after: &mut After<V>) {
        let member = &mut self.members[me];
        member.gone = true;
        after.discarded.extend(member.inbox.drain().map(|(_, value)| value));
        self.wake_dependants(me, u64::MAX, after);
        self.release(after);
    }

    /// Wakes whatever of the steps up to `last` can't be served any more because `me` has
    /// no further part in them.
    fn wake_dependants(&self, me: usize, last: u64, after: &mut After<V>) {
        for (rank, member) in self.members.iter().enumerate() {
            let affected = member
                .waiting
                .iter()
                .filter(|((from, tag), _)| (rank == me || *from == me) && tag.step <= last);
            after.wake.extend(affected.map(|(_, waker)| waker.clone()));
        }
        self.wake_rounds(0..=last, after);
    }

    fn wake_rounds(&self, steps: std::ops::RangeInclusive<u64>, after: &mut After<V>) {
        let rounds = (*steps.start(), 0)..=(*steps.end(), u32::MAX);
        for (_, round) in self.rounds.range(rounds) {
            after.wake.extend(round.waiting.iter().flatten().cloned());
        }
    }

    /// Drops the marks and rounds of steps that no rank will ask about again.
    fn release(&mut self, after: &mut After<V>) {
        let present = self.members.iter().filter(|member| !member.gone);
        let Some(Some(last)) = present.map(|member| member.ended).min() else {
            return;
        };
        self.aborts.retain(|&step, _| step > last);
        let dropped = self.rounds.extract_if(..=(last, u32::MAX), |_, _| true);
        for (_, round) in dropped {
            after.stale.extend(round.waiting.into_iter().flatten());
        }
    }

    /// How many messages, rounds, abort marks and wakers are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> [usize; 4] {
        let sum = |count: fn(&Member<V>) -> usize| self.members.iter().map(count).sum();
        [
            sum(|member| member.inbox.len()),
            self.rounds.len(),
            self.aborts.len(),
            sum(|member| member.waiting.len()),
        ]
    }
}
