//! The conformance suite can fail: each transport here breaks one rule of the contract,
//! and the suite says so, hang or not.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use stovepipe_transport::{Direction, InProcess, Tag, Transport, TransportError, conformance};

/// How long to wait for what never comes.
const SOON: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Takes messages in the order in which they were sent.
    MatchesByArrival,
    /// Forgets which direction a message goes.
    IgnoresDirection,
    /// Takes a message out, then waits once more before it returns it.
    LosesOnDrop,
    /// Keeps waking the waker of the first poll.
    WakesFirstPoller,
    /// Blocks the thread until the receiver has come.
    BlocksInSend,
    /// Says nothing of an abort to anyone, if there is anyone.
    DropsAborts,
    /// Looks for an abort when an operation begins, and never again.
    WakesNobodyOnAbort,
    /// Aborts more than it was asked to.
    AbortsNextStep,
    /// Blames the rank that learns of an abort.
    MisnamesAborter,
    /// Gathers from this rank on.
    RotatesGather,
    /// Leaves out contributions without bytes.
    SkipsEmpty,
    /// Never ends a step.
    NeverEnds,
    /// Calls every rank the first.
    MistakesRank,
    /// Panics on a rank outside the group.
    PanicsOnRank,
}

#[derive(Default)]
struct Shared {
    aborts: Mutex<HashMap<u64, TransportError>>,
    posted: Mutex<HashSet<(usize, usize, Tag)>>,
    arrived: Condvar,
}

struct Broken {
    inner: InProcess<Vec<u8>>,
    fault: Fault,
    sent: Vec<AtomicUsize>,
    received: Vec<AtomicUsize>,
    shared: Arc<Shared>,
    /// The first step that this rank hasn't ended.
    current: AtomicU64,
}

impl Broken {
    fn group(ranks: usize, fault: Fault) -> Vec<Self> {
        let counters = || (0..ranks).map(|_| AtomicUsize::new(0)).collect();
        let shared = Arc::new(Shared::default());
        let endpoint = |inner| Self {
            inner,
            fault,
            sent: counters(),
            received: counters(),
            shared: Arc::clone(&shared),
            current: AtomicU64::new(0),
        };
        InProcess::group(ranks).into_iter().map(endpoint).collect()
    }

    fn has_ended(&self, step: u64) -> bool {
        step < self.current.load(Ordering::Relaxed)
    }

    /// The abort of `step` that [`Fault::WakesNobodyOnAbort`] keeps apart.
    fn check(&self, step: u64) -> Result<(), TransportError> {
        if self.has_ended(step) {
            return Ok(());
        }
        let aborts = self.shared.aborts.lock().expect("the lock");
        aborts.get(&step).cloned().map_or(Ok(()), Err)
    }

    fn retag(&self, mut tag: Tag, counters: &[AtomicUsize], peer: usize) -> Tag {
        match self.fault {
            Fault::MatchesByArrival => {
                if let Some(counter) = counters.get(peer) {
                    tag.micro_batch = counter.fetch_add(1, Ordering::Relaxed) as u32;
                    tag.from_stage = 0;
                    tag.to_stage = 0;
                    tag.direction = Direction::Forward;
                }
            }
            Fault::IgnoresDirection => tag.direction = Direction::Forward,
            _ => {}
        }
        tag
    }
}

async fn once_more() {
    let mut polled = false;
    poll_fn(|cx: &mut Context<'_>| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[async_trait]
impl Transport<Vec<u8>> for Broken {
    fn rank(&self) -> usize {
        match self.fault {
            Fault::MistakesRank => 0,
            _ => self.inner.rank(),
        }
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    async fn send(&self, to: usize, tag: Tag, value: Vec<u8>) -> Result<(), TransportError> {
        self.check(tag.step)?;
        if self.fault == Fault::PanicsOnRank {
            assert!(to < self.ranks(), "rank {to} out of range");
        }
        if self.fault == Fault::BlocksInSend && to < self.ranks() {
            let message = (self.rank(), to, tag);
            let posted = self.shared.posted.lock().expect("the lock");
            let posted = self.shared.arrived.wait_while(posted, |set| !set.contains(&message));
            drop(posted.expect("the lock"));
        }
        let tag = self.retag(tag, &self.sent, to);
        self.inner.send(to, tag, value).await
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<Vec<u8>, TransportError> {
        self.check(tag.step)?;
        if self.fault == Fault::BlocksInSend {
            let mut posted = self.shared.posted.lock().expect("the lock");
            posted.insert((from, self.rank(), tag));
            self.shared.arrived.notify_all();
        }
        let mut recv: BoxFuture<'_, _> =
            self.inner.recv(from, self.retag(tag, &self.received, from));
        if self.fault == Fault::WakesFirstPoller {
            let mut first = None;
            return poll_fn(|cx: &mut Context<'_>| {
                let waker = first.get_or_insert_with(|| cx.waker().clone());
                recv.poll_unpin(&mut Context::from_waker(waker))
            })
            .await;
        }
        let outcome = recv.await;
        if self.fault == Fault::LosesOnDrop {
            once_more().await;
        }
        match outcome {
            Err(TransportError::Aborted { step, reason, .. })
                if self.fault == Fault::MisnamesAborter =>
            {
                let by = self.rank();
                Err(TransportError::Aborted { step, by, reason })
            }
            outcome => outcome,
        }
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        self.check(step)?;
        let mut gathered = self.inner.all_gather(step, round, bytes).await?;
        match self.fault {
            Fault::RotatesGather => gathered.rotate_left(self.rank()),
            Fault::SkipsEmpty => gathered.retain(|part| !part.is_empty()),
            _ => {}
        }
        Ok(gathered)
    }

    fn abort(&self, step: u64, reason: &str) {
        match self.fault {
            Fault::DropsAborts if self.ranks() > 1 => {}
            Fault::WakesNobodyOnAbort if self.has_ended(step) => {}
            Fault::WakesNobodyOnAbort => {
                let mut aborts = self.shared.aborts.lock().expect("the lock");
                let (by, reason) = (self.rank(), reason.to_string());
                aborts.entry(step).or_insert(TransportError::Aborted { step, by, reason });
            }
            _ => self.inner.abort(step, reason),
        }
        if self.fault == Fault::AbortsNextStep {
            self.inner.abort(step + 1, reason);
        }
    }

    fn end_step(&self, step: u64) {
        self.current.fetch_max(step + 1, Ordering::Relaxed);
        if self.fault != Fault::NeverEnds {
            self.inner.end_step(step);
        }
    }
}

/// The verdict of the suite on a transport with `fault`.
fn verdict(fault: Fault, limit: Duration) -> String {
    conformance::run_all_within(limit, |ranks| Broken::group(ranks, fault))
        .expect_err(&format!("the suite doesn't notice {fault:?}"))
}

/// The suite notices, in one of these ways.
fn assert_caught(fault: Fault, expected: &[&str]) {
    let verdict = verdict(fault, conformance::LIMIT);
    let caught = expected.iter().any(|expected| verdict.contains(expected));
    assert!(caught, "{fault:?}: none of {expected:?} is in {verdict:?}");
}

/// The suite notices that nothing moves any more.
fn assert_hangs(fault: Fault) {
    let verdict = verdict(fault, SOON);
    assert!(verdict.contains("so it hangs"), "{fault:?}: {verdict:?}");
}

#[test]
fn the_wrapper_itself_is_sound() {
    conformance::run_all(|ranks| Broken::group(ranks, Fault::None)).expect("no fault");
}

#[test]
fn matching_by_arrival_is_caught() {
    assert_caught(Fault::MatchesByArrival, &["returned the value of"]);
}

#[test]
fn ignoring_a_field_of_the_tag_is_caught() {
    assert_caught(Fault::IgnoresDirection, &["still unclaimed", "returned the value of"]);
}

#[test]
fn losing_a_message_is_caught() {
    assert_hangs(Fault::LosesOnDrop);
}

#[test]
fn waking_the_wrong_waker_is_caught() {
    assert_hangs(Fault::WakesFirstPoller);
}

#[test]
fn blocking_in_a_send_is_caught() {
    assert_hangs(Fault::BlocksInSend);
}

#[test]
fn dropping_aborts_is_caught() {
    assert_hangs(Fault::DropsAborts);
}

#[test]
fn waking_nobody_on_an_abort_is_caught() {
    assert_hangs(Fault::WakesNobodyOnAbort);
}

#[test]
fn aborting_too_much_is_caught() {
    assert_caught(Fault::AbortsNextStep, &["abort"]);
}

#[test]
fn misnaming_the_aborter_is_caught() {
    assert_caught(Fault::MisnamesAborter, &["should fail with Aborted by rank"]);
}

#[test]
fn gathering_out_of_order_is_caught() {
    assert_caught(Fault::RotatesGather, &["the result of round"]);
}

#[test]
fn gathering_less_than_all_is_caught() {
    assert_caught(Fault::SkipsEmpty, &["the result of round"]);
}

#[test]
fn never_ending_a_step_is_caught() {
    assert_caught(Fault::NeverEnds, &["Ended"]);
}

#[test]
fn a_mistaken_rank_is_caught() {
    assert_caught(Fault::MistakesRank, &["calls itself rank 0"]);
}

#[test]
fn a_panic_is_caught() {
    assert_caught(Fault::PanicsOnRank, &["panicked: rank"]);
}

#[test]
fn a_group_of_the_wrong_size_is_caught() {
    let verdict = conformance::run_all(|ranks| InProcess::group(ranks + 1));
    assert_eq!(verdict, Err("asked for 1 endpoints and got 2".to_string()));
}
