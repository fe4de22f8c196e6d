//! States of endpoints against each other, without MPI: what one wants sent is delivered to the
//! others by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use stovepipe_transport::Direction;

use super::*;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Group {
    endpoints: Vec<EndpointState>,
    pool: Pool,
    flying: Vec<(usize, usize, Vec<u8>)>,
    woken: Arc<Count>,
}

impl Group {
    fn new(ranks: usize) -> Self {
        let endpoints = (0..ranks).map(|me| EndpointState::new(0, me, ranks)).collect();
        Self { endpoints, pool: Pool::default(), flying: Vec::new(), woken: Arc::default() }
    }

    fn at<R>(
        &mut self,
        me: usize,
        act: impl FnOnce(&mut EndpointState, &mut Pool, &mut After) -> R,
    ) -> R {
        let mut after = After::default();
        let result = act(&mut self.endpoints[me], &mut self.pool, &mut after);
        self.flying.extend(after.send.drain(..).map(|(to, frame)| (me, to, frame.buffer)));
        after.wake();
        result
    }

    /// Delivers everything, in order.
    fn deliver(&mut self) {
        while !self.flying.is_empty() {
            let (from, to, frame) = self.flying.remove(0);
            let head = frame::read(&frame).expect("a frame").0.head;
            self.at(to, |state, pool, after| state.deliver(from, head, frame, pool, after));
        }
    }

    fn send(&mut self, from: usize, to: usize, tag: Tag) {
        let frame = whole(Address { channel: 0, head: Head::Value(tag) }, b"value");
        self.flying.push((from, to, frame.buffer));
    }

    fn recv(&mut self, me: usize, from: usize, tag: Tag) -> Poll<Result<Vec<u8>, TransportError>> {
        let waker = Arc::clone(&self.woken).into();
        self.at(me, |state, _, after| state.poll_recv(from, tag, &waker, &mut true, after))
    }

    fn gather(
        &mut self,
        me: usize,
        key: (u64, u32),
        mut bytes: Option<Vec<u8>>,
    ) -> Poll<Result<Vec<Vec<u8>>, TransportError>> {
        let waker = Arc::clone(&self.woken).into();
        self.at(me, |state, _, after| state.poll_gather(key, &mut bytes, &waker, after))
    }

    fn woken(&self) -> usize {
        self.woken.0.swap(0, Ordering::Relaxed)
    }
}

fn tag(step: u64) -> Tag {
    Tag { step, micro_batch: 0, from_stage: 0, to_stage: 1, direction: Direction::Forward }
}

fn failed<T: std::fmt::Debug>(outcome: Poll<Result<T, TransportError>>) -> TransportError {
    match outcome {
        Poll::Ready(Err(error)) => error,
        other => panic!("not failed: {other:?}"),
    }
}

#[test]
fn a_message_wakes_whoever_waits_for_it() {
    let mut group = Group::new(2);
    assert!(group.recv(1, 0, tag(0)).is_pending());
    assert!(group.endpoints[1].is_waiting());
    group.send(0, 1, tag(1));
    group.deliver();
    assert_eq!(group.woken(), 0);
    group.send(0, 1, tag(0));
    group.deliver();
    assert_eq!(group.woken(), 1);
    for step in [0, 1] {
        let Poll::Ready(Ok(frame)) = group.recv(1, 0, tag(step)) else { panic!("no value") };
        assert_eq!(frame::read(&frame).expect("a frame").1, b"value");
    }
}

#[test]
fn two_messages_with_one_tag_are_noticed() {
    let mut group = Group::new(2);
    group.send(0, 1, tag(0));
    group.send(0, 1, tag(0));
    group.deliver();
    assert_eq!(failed(group.recv(1, 0, tag(0))), TransportError::Duplicate { tag: tag(0) });
}

#[test]
fn an_abort_reaches_everyone_and_the_first_one_stands() {
    let mut group = Group::new(3);
    assert!(group.recv(1, 0, tag(0)).is_pending());
    assert!(group.gather(2, (0, 0), Some(vec![1])).is_pending());
    group.at(0, |state, _, after| state.abort(0, "enough", after));
    group.at(2, |state, _, after| state.abort(0, "too", after));
    group.woken();
    group.send(0, 1, tag(0));
    group.deliver();
    assert!(group.woken() >= 1);
    let aborted = |by, reason: &str| {
        let reason = reason.to_owned();
        TransportError::Aborted { step: 0, by, reason }
    };
    assert_eq!(failed(group.recv(1, 0, tag(0))), aborted(0, "enough"));
    assert_eq!(failed(group.gather(2, (0, 0), None)), aborted(2, "too"));
    assert_eq!(group.endpoints[1].may_send(0, tag(0)), Err(aborted(0, "enough")));
    assert_eq!(group.endpoints[1].may_send(0, tag(1)), Ok(()));
}

#[test]
fn a_rank_that_ended_the_step_still_helps_in_rounds_that_it_joined() {
    let mut group = Group::new(4);
    assert!(group.gather(2, (0, 0), Some(vec![2])).is_pending());
    group.at(2, |state, pool, after| state.end_step(0, pool, after));
    for rank in [0, 1, 3] {
        assert!(group.gather(rank, (0, 0), Some(vec![rank as u8])).is_pending());
    }
    group.deliver();
    for rank in [0, 1, 3] {
        let Poll::Ready(Ok(all)) = group.gather(rank, (0, 0), None) else { panic!("rank {rank}") };
        assert_eq!(all, [[0], [1], [2], [3]]);
        group.at(rank, |state, pool, after| state.end_step(0, pool, after));
    }
    assert!(
        group.endpoints.iter().all(|endpoint| endpoint.gathers.is_empty()),
        "nothing is left of the step"
    );
}

#[test]
fn a_rank_that_left_after_it_joined_still_counts() {
    let mut group = Group::new(3);
    assert!(group.gather(1, (0, 0), Some(vec![1])).is_pending());
    group.send(1, 0, tag(0));
    group.at(1, |state, pool, after| state.leave(pool, after));
    group.deliver();
    assert!(group.recv(0, 1, tag(0)).is_ready(), "what was sent before counts");
    for rank in [0, 2] {
        assert!(group.gather(rank, (0, 0), Some(vec![rank as u8])).is_pending());
    }
    assert!(!group.endpoints[1].is_done());
    group.deliver();
    for rank in [0, 2] {
        assert!(matches!(group.gather(rank, (0, 0), None), Poll::Ready(Ok(_))));
    }
    assert!(group.endpoints[1].is_done());
}

#[test]
fn nobody_waits_for_a_rank_that_left() {
    let mut group = Group::new(2);
    assert!(group.recv(0, 1, tag(0)).is_pending());
    assert!(group.gather(0, (0, 0), Some(vec![0])).is_pending());
    group.woken();
    group.at(1, |state, pool, after| state.leave(pool, after));
    group.deliver();
    assert_eq!(group.woken(), 2);
    let gone = TransportError::PeerGone { rank: 1 };
    assert_eq!(failed(group.recv(0, 1, tag(0))), gone);
    assert_eq!(failed(group.gather(0, (0, 0), None)), gone);
    assert_eq!(group.endpoints[0].may_send(1, tag(0)), Err(gone));
}

#[test]
fn nothing_is_left_of_an_ended_step() {
    let mut group = Group::new(2);
    for step in 0..3 {
        group.send(0, 1, tag(step));
        group.deliver();
        assert!(group.recv(1, 0, Tag { micro_batch: 1, ..tag(step) }).is_pending());
        assert!(group.gather(1, (step, 0), Some(vec![1])).is_pending());
        assert!(group.gather(0, (step, 0), Some(vec![1])).is_pending());
        group.deliver();
        group.at(1, |state, _, after| state.abort(step, "half-way", after));
        group.deliver();
        for rank in [0, 1] {
            group.at(rank, |state, pool, after| state.end_step(step, pool, after));
        }
        group.at(1, |state, _, after| {
            state.forget_recv(0, Tag { micro_batch: 1, ..tag(step) }, after);
        });
        // Messages of an ended step that arrive late are dropped.
        group.send(0, 1, tag(step));
        group.deliver();
        for endpoint in &group.endpoints {
            let held = (endpoint.inbox.len(), endpoint.waiting.len(), endpoint.aborts.len());
            assert_eq!((held, endpoint.gathers.len()), ((0, 0, 0), 0));
        }
    }
}
