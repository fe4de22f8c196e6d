//! [`InProcess`]: ranks are threads of one process, and a value is moved, not copied or
//! encoded. Mailboxes are unbounded: how much may be in flight is the plan's matter.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;

use crate::error::TransportError;
use crate::group::{After, Group};
use crate::tag::Tag;
use crate::transport::Transport;

/// One rank's endpoint of a group within this process.
///
/// A send resolves at its first poll. Dropping an endpoint tells its peers: whatever of
/// theirs still needs it fails with [`TransportError::PeerGone`] instead of waiting.
pub struct InProcess<V: Send + 'static> {
    rank: usize,
    ranks: usize,
    group: Arc<Mutex<Group<V>>>,
}

impl<V: Send + 'static> InProcess<V> {
    /// The endpoints of a new group, in rank order.
    ///
    /// ```
    /// use stovepipe_transport::{InProcess, Transport};
    ///
    /// let group = InProcess::<Vec<f32>>::group(4);
    /// assert_eq!(group[3].rank(), 3);
    /// assert_eq!(group[3].ranks(), 4);
    /// ```
    pub fn group(ranks: usize) -> Vec<Self> {
        let group = Arc::new(Mutex::new(Group::new(ranks)));
        let endpoint = |rank| Self { rank, ranks, group: Arc::clone(&group) };
        (0..ranks).map(endpoint).collect()
    }

    /// Runs `act` under the lock, then what it left to be done without. A poisoned lock is
    /// used as it is: no code of a caller runs under it, so its data is whole.
    fn with<R>(&self, act: impl FnOnce(&mut Group<V>, &mut After<V>) -> R) -> R {
        let mut after = After::new();
        let result = {
            let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
            act(&mut group, &mut after)
        };
        after.run();
        result
    }

    fn peer(&self, rank: usize) -> Result<(), TransportError> {
        if rank >= self.ranks {
            let ranks = self.ranks;
            Err(TransportError::NoSuchRank { rank, ranks })
        } else if rank == self.rank {
            Err(TransportError::SelfMessage { rank })
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl<V: Send + 'static> Transport<V> for InProcess<V> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    async fn send(&self, to: usize, tag: Tag, value: V) -> Result<(), TransportError> {
        self.peer(to)?;
        self.with(|group, after| group.send(self.rank, to, tag, value, after))
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<V, TransportError> {
        self.peer(from)?;
        let receive = Receive { endpoint: self, from, tag, registered: false };
        receive.await
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let gather = AllGather {
            endpoint: self,
            round: (step, round),
            bytes: Some(bytes),
            registered: false,
        };
        gather.await
    }

    fn abort(&self, step: u64, reason: &str) {
        self.with(|group, after| group.abort(self.rank, step, reason, after));
    }

    fn end_step(&self, step: u64) {
        self.with(|group, after| group.end_step(self.rank, step, after));
    }
}

impl<V: Send + 'static> Drop for InProcess<V> {
    fn drop(&mut self) {
        self.with(|group, after| group.leave(self.rank, after));
    }
}

impl<V: Send + 'static> fmt::Debug for InProcess<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

struct Receive<'a, V: Send + 'static> {
    endpoint: &'a InProcess<V>,
    from: usize,
    tag: Tag,
    registered: bool,
}

impl<V: Send + 'static> Future for Receive<'_, V> {
    type Output = Result<V, TransportError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (me, from, tag) = (this.endpoint.rank, this.from, this.tag);
        let registered = &mut this.registered;
        this.endpoint
            .with(|group, after| group.poll_recv(me, from, tag, cx.waker(), registered, after))
    }
}

impl<V: Send + 'static> Drop for Receive<'_, V> {
    fn drop(&mut self) {
        if self.registered {
            let (me, from, tag) = (self.endpoint.rank, self.from, self.tag);
            self.endpoint.with(|group, after| group.forget_recv(me, from, tag, after));
        }
    }
}

struct AllGather<'a, V: Send + 'static> {
    endpoint: &'a InProcess<V>,
    round: (u64, u32),
    bytes: Option<Vec<u8>>,
    registered: bool,
}

impl<V: Send + 'static> Future for AllGather<'_, V> {
    type Output = Result<Vec<Vec<u8>>, TransportError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (me, round, bytes) = (this.endpoint.rank, this.round, &mut this.bytes);
        let outcome = this
            .endpoint
            .with(|group, after| group.poll_all_gather(me, round, bytes, cx.waker(), after));
        this.registered |= outcome.is_pending();
        outcome
    }
}

impl<V: Send + 'static> Drop for AllGather<'_, V> {
    fn drop(&mut self) {
        if self.registered {
            let (me, round) = (self.endpoint.rank, self.round);
            self.endpoint.with(|group, after| group.forget_all_gather(me, round, after));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::tag::Direction;

    fn tag(step: u64, micro_batch: u32) -> Tag {
        Tag { step, micro_batch, from_stage: 0, to_stage: 1, direction: Direction::Forward }
    }

    #[test]
    fn nothing_is_left_of_an_ended_step() {
        let group = InProcess::<u8>::group(2);
        let held = || group[0].with(|group, _| group.held());

        for step in 0..3 {
            let send = group[0].send(1, tag(step, 0), 1);
            assert_eq!(send.now_or_never(), Some(Ok(())));
            let mut recv = group[1].recv(0, tag(step, 1));
            assert!((&mut recv).now_or_never().is_none());
            let mut gather = group[1].all_gather(step, 0, vec![1]);
            assert!((&mut gather).now_or_never().is_none());
            let complete = group[0].all_gather(step, 0, vec![2]);
            assert!(matches!(complete.now_or_never(), Some(Ok(_))));
            group[1].abort(step, "half-way");
            assert_eq!(held(), [1, 1, 1, 1]);

            group[0].end_step(step);
            assert_eq!(held(), [1, 1, 1, 1], "rank 1 hasn't ended the step");
            group[1].end_step(step);
            drop((recv, gather));
            assert_eq!(held(), [0; 4]);
        }
    }

    #[test]
    fn a_dropped_receive_leaves_no_waker() {
        let group = InProcess::<u8>::group(2);
        for micro_batch in 0..10 {
            let recv = group[1].recv(0, tag(0, micro_batch));
            assert!(recv.now_or_never().is_none());
        }
        assert_eq!(group[0].with(|group, _| group.held()), [0; 4]);
    }

    #[test]
    fn a_poisoned_lock_is_not_passed_on() {
        let group = InProcess::<u8>::group(2);
        let shared = Arc::clone(&group[0].group);
        let poisoner = std::thread::spawn(move || {
            let _guard = shared.lock();
            panic!("on purpose");
        });
        assert!(poisoner.join().is_err());
        assert!(group[0].group.is_poisoned());
        let send = group[0].send(1, tag(0, 0), 1);
        assert_eq!(send.now_or_never(), Some(Ok(())));
        assert_eq!(group[1].recv(0, tag(0, 0)).now_or_never(), Some(Ok(1)));
    }
}
