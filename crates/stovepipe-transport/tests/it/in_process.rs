//! The promises of channels within one process beyond the conformance suite: peers that
//! go away, misuse, and what is freed when.

use std::sync::{Arc, Weak};
use std::thread;

use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use proptest::prelude::*;
use stovepipe_transport::{Direction, InProcess, Tag, Transport, TransportError, conformance};

fn tag(step: u64, micro_batch: u32) -> Tag {
    Tag { step, micro_batch, from_stage: 0, to_stage: 1, direction: Direction::Forward }
}

fn pair<V: Send + 'static>() -> (InProcess<V>, InProcess<V>) {
    let group: [InProcess<V>; 2] = InProcess::group(2).try_into().expect("two endpoints");
    group.into()
}

#[test]
fn keeps_the_contract() {
    conformance::run_all(InProcess::group).expect("InProcess keeps the contract");
}

#[test]
fn a_receive_from_a_dropped_peer_fails_instead_of_hanging() {
    let (left, right) = pair::<u8>();
    let mut recv = left.recv(1, tag(0, 0));
    assert!((&mut recv).now_or_never().is_none());
    let dropper = thread::spawn(move || drop(right));
    assert_eq!(block_on(recv), Err(TransportError::PeerGone { rank: 1 }));
    dropper.join().expect("the dropping thread");
    let sent = block_on(left.send(1, tag(0, 0), 1));
    assert_eq!(sent, Err(TransportError::PeerGone { rank: 1 }));
}

#[test]
fn a_gather_with_a_dropped_peer_fails_instead_of_hanging() {
    let (left, right) = pair::<u8>();
    let mut gather = left.all_gather(0, 0, vec![1]);
    assert!((&mut gather).now_or_never().is_none());
    let dropper = thread::spawn(move || drop(right));
    assert_eq!(block_on(gather), Err(TransportError::PeerGone { rank: 1 }));
    dropper.join().expect("the dropping thread");
    let later = block_on(left.all_gather(0, 1, vec![1]));
    assert_eq!(later, Err(TransportError::PeerGone { rank: 1 }));
}

#[test]
fn what_a_peer_did_before_it_went_still_counts() {
    let (left, right) = pair::<u8>();
    block_on(right.send(0, tag(0, 0), 5)).expect("a send");
    assert!(right.all_gather(0, 0, vec![6]).now_or_never().is_none());
    drop(right);
    assert_eq!(block_on(left.recv(1, tag(0, 0))), Ok(5));
    let gathered = block_on(left.all_gather(0, 0, vec![7]));
    assert_eq!(gathered, Ok(vec![vec![7], vec![6]]));
}

#[test]
fn an_abort_outlives_the_rank_that_called_it() {
    let (left, right) = pair::<u8>();
    right.abort(0, "device lost");
    right.end_step(0);
    drop(right);
    let aborted = TransportError::Aborted { step: 0, by: 1, reason: "device lost".to_string() };
    assert_eq!(block_on(left.recv(1, tag(0, 0))), Err(aborted));
    let later = block_on(left.recv(1, tag(1, 0)));
    assert_eq!(later, Err(TransportError::PeerGone { rank: 1 }));
}

#[test]
fn a_peer_that_ended_the_step_is_not_waited_for() {
    let (left, right) = pair::<u8>();
    let mut recv = left.recv(1, tag(0, 0));
    let mut gather = left.all_gather(0, 0, Vec::new());
    assert!((&mut recv).now_or_never().is_none());
    assert!((&mut gather).now_or_never().is_none());
    right.end_step(0);
    let ended = TransportError::PeerEnded { rank: 1, step: 0 };
    assert_eq!(block_on(recv), Err(ended.clone()));
    assert_eq!(block_on(gather), Err(ended.clone()));
    assert_eq!(block_on(left.send(1, tag(0, 0), 1)), Err(ended));
    assert_eq!(block_on(left.send(1, tag(1, 0), 1)), Ok(()));
}

#[test]
fn a_slow_rank_still_gets_what_a_faster_one_left_for_it() {
    let (left, right) = pair::<u8>();
    block_on(right.send(0, tag(0, 0), 1)).expect("a send");
    let mut slow = left.all_gather(0, 0, vec![1]);
    assert!((&mut slow).now_or_never().is_none());
    block_on(right.all_gather(0, 0, vec![2])).expect("a complete round");
    right.end_step(0);
    block_on(right.send(0, tag(1, 0), 2)).expect("a send");

    assert_eq!(block_on(slow), Ok(vec![vec![1], vec![2]]));
    assert_eq!(block_on(left.recv(1, tag(0, 0))), Ok(1));
    left.end_step(0);
    assert_eq!(block_on(left.recv(1, tag(1, 0))), Ok(2));
}

#[test]
fn misuse_is_reported() {
    let (left, right) = pair::<u8>();
    block_on(left.send(1, tag(0, 0), 1)).expect("a send");
    let again = block_on(left.send(1, tag(0, 0), 2));
    assert_eq!(again, Err(TransportError::Duplicate { tag: tag(0, 0) }));
    assert_eq!(block_on(right.recv(0, tag(0, 0))), Ok(1));

    let mut recv = right.recv(0, tag(0, 1));
    assert!((&mut recv).now_or_never().is_none());
    let second = block_on(right.recv(0, tag(0, 1)));
    assert_eq!(second, Err(TransportError::AlreadyReceiving { tag: tag(0, 1) }));
    block_on(left.send(1, tag(0, 1), 3)).expect("a send");
    assert_eq!(block_on(recv), Ok(3));

    assert!(left.all_gather(0, 4, vec![1]).now_or_never().is_none());
    let twice = block_on(left.all_gather(0, 4, vec![2]));
    assert_eq!(twice, Err(TransportError::RoundTwice { step: 0, round: 4 }));
    let gathered = block_on(right.all_gather(0, 4, vec![3]));
    assert_eq!(gathered, Ok(vec![vec![1], vec![3]]));
    let twice = block_on(right.all_gather(0, 4, vec![3]));
    assert_eq!(twice, Err(TransportError::RoundTwice { step: 0, round: 4 }));
}

#[test]
fn no_value_outlives_its_step() {
    let (left, right) = pair::<Arc<&str>>();
    let send = |step, micro_batch| -> Weak<&str> {
        let value = Arc::new("activations");
        let watch = Arc::downgrade(&value);
        block_on(left.send(1, tag(step, micro_batch), value)).ok();
        watch
    };

    let (unclaimed, aborted, next) = (send(0, 0), send(1, 0), send(2, 0));
    left.abort(1, "enough");
    assert_eq!(send(1, 1).strong_count(), 0, "a refused send keeps its value");
    right.end_step(1);
    assert_eq!(unclaimed.strong_count(), 0, "an unclaimed value outlives its step");
    assert_eq!(aborted.strong_count(), 0, "a value outlives its aborted step");
    assert_eq!(send(1, 2).strong_count(), 0, "a value arrives after its step");
    assert_eq!(next.strong_count(), 1, "a value of the next step is lost");

    drop(block_on(right.recv(0, tag(2, 0))).expect("a value"));
    assert_eq!(next.strong_count(), 0, "a received value is kept");
    let inherited = send(2, 1);
    drop(right);
    assert_eq!(inherited.strong_count(), 0, "a dropped endpoint keeps a value");
}

/// A value whose drop uses the transport: it must not run while the group is locked.
struct Reentrant(Weak<InProcess<Reentrant>>);

impl Drop for Reentrant {
    fn drop(&mut self) {
        if let Some(endpoint) = self.0.upgrade() {
            endpoint.abort(99, "dropped");
        }
    }
}

#[test]
fn dropped_values_may_use_the_transport() {
    let (left, right) = pair::<Reentrant>();
    let (left, right) = (Arc::new(left), Arc::new(right));
    let value = || Reentrant(Arc::downgrade(&left));
    block_on(left.send(1, tag(0, 0), value())).expect("a send");
    assert!(block_on(left.send(1, tag(0, 0), value())).is_err());
    right.end_step(0);
    assert!(block_on(left.send(1, tag(0, 1), value())).is_err());
    let recv = block_on(right.recv(0, tag(99, 0)));
    assert!(matches!(recv, Err(TransportError::Aborted { by: 0, .. })));
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Send(u64, u32),
    Recv(u64, u32),
    Gather(u64, u32),
    Abort(u64),
    EndStep(u64),
    /// Awaits nothing, but polls whatever was woken.
    Poll,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..3u64, 0..4u32).prop_map(|(step, m)| Act::Send(step, m)),
        4 => (0..3u64, 0..4u32).prop_map(|(step, m)| Act::Recv(step, m)),
        2 => (0..3u64, 0..2u32).prop_map(|(step, round)| Act::Gather(step, round)),
        1 => (0..3u64).prop_map(Act::Abort),
        1 => (0..3u64).prop_map(Act::EndStep),
        3 => Just(Act::Poll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever three ranks do in whatever order, once they have ended their steps nothing
    /// of theirs is pending, nothing was woken too late, and no value is left.
    #[test]
    fn nothing_hangs(acts in prop::collection::vec((0..3usize, 0..3usize, act()), 0..60)) {
        let witness = Arc::new(());
        let group = InProcess::<Arc<()>>::group(3);
        let mut pending = FuturesUnordered::new();
        for (me, peer, act) in acts {
            let endpoint = &group[me];
            match act {
                Act::Send(step, m) => {
                    endpoint.send(peer, tag(step, m), Arc::clone(&witness)).now_or_never()
                        .expect("a send never waits").ok();
                }
                Act::Recv(step, m) => {
                    let recv = endpoint.recv(peer, tag(step, m));
                    pending.push(recv.map(drop).boxed());
                }
                Act::Gather(step, round) => {
                    let gather = endpoint.all_gather(step, round, Vec::new());
                    pending.push(gather.map(drop).boxed());
                }
                Act::Abort(step) => endpoint.abort(step, "by chance"),
                Act::EndStep(step) => endpoint.end_step(step),
                Act::Poll => {}
            }
            while let Some(Some(())) = pending.next().now_or_never() {}
        }
        for endpoint in &group {
            endpoint.end_step(2);
        }
        while let Some(Some(())) = pending.next().now_or_never() {}
        prop_assert!(pending.is_empty(), "{} operations hang", pending.len());
        prop_assert_eq!(Arc::strong_count(&witness), 1);
    }
}
