//! Ranks that are killed, stopped or panic, and ranks that were started with something else: what
//! they do here, and how the job has to end.

use std::process::Command;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::Trial;
use stovepipe::Mpi;
use stovepipe::burn::tensor::Tensor;
use stovepipe::recompute::Always;
use stovepipe::schedule::OneFOneB;
use stovepipe::transport::{Direction, Tag, Transport, TransportError};
use stovepipe::{LayerContext, Packet, Pass};
use stovepipe_testkit::batch;
use stovepipe_testkit::jobs::launch;

use crate::model::{builder, model};

/// The rank that something happens to; it has a neighbour on either side.
const VICTIM: usize = 1;
const RANKS: usize = 3;
/// When it happens.
const STEP: u64 = 2;
const MICRO_BATCH: u32 = 2;

/// By the job's name: what its messages have to say, all of it in one line.
const EXPECTED: [(&str, &[&str]); 11] = [
    ("killed-in-forward", &["rank 1", "signal 9"]),
    ("killed-in-backward", &["rank 1", "signal 9"]),
    ("killed-in-update", &["rank 1", "signal 9"]),
    ("stopped", &["ends the job", "rank 1 has been silent"]),
    ("panics-in-forward", &["rank 1, stage 1, micro-batch 2, forward", "panicked: on purpose"]),
    ("fails-in-backward", &["rank 1, stage 1, micro-batch 2, backward", "layer `fault`"]),
    ("panics-outside", &["rank 1 is gone"]),
    ("exits", &["Process name: [[", ",1]"]),
    ("other-model", &["rank 1 differs from the others in the number of layers: 12 instead of 11"]),
    ("other-micro-batches", &["rank 1 differs from the others in the number of micro-batches: 3"]),
    ("other-batch", &["rank 1 differs from the others in the batch"]),
];

pub(crate) fn tests() -> impl Iterator<Item = Trial> {
    EXPECTED.into_iter().map(|(name, said)| {
        let test = move || {
            let ended = launch(RANKS, &["failures", name])?;
            if ended.status.success() {
                return Err(format!("the job should fail\n{}", ended.output).into());
            }
            if ended.took > Duration::from_secs(30) {
                return Err(format!("the job took {:?} to end", ended.took).into());
            }
            let mut lines = ended.output.lines();
            match lines.any(|line| said.iter().all(|part| line.contains(part))) {
                true => Ok(()),
                false => Err(format!("no line says {said:?}\n{}", ended.output).into()),
            }
        };
        Trial::test(name.replace('-', "_"), test)
    })
}

pub(crate) fn run(job: &[String]) -> Result<(), String> {
    let name = job.first().map(String::as_str).unwrap_or_default();
    let mpi = Mpi::world().map_err(|error| error.to_string())?;
    let is_victim = mpi.rank() == VICTIM;
    let (panics, fails) = (name == "panics-in-forward", name == "fails-in-backward");
    let fault = move |x: Tensor<3>, context: &mut LayerContext<'_>| {
        let here = context.step() == STEP && context.micro_batch() == MICRO_BATCH as usize;
        assert!(!(here && panics), "on purpose");
        // Another shape than at first shows in the backward.
        let wrong = here && fails && context.pass() == Pass::Recompute;
        if wrong { x.narrow(1, 0, 1) } else { x }
    };
    let mut model = model(fault);
    if is_victim && name == "other-model" {
        model = model.push_fn("one too many", |x: Tensor<3>| x);
    }
    let micro_batches = if is_victim && name == "other-micro-batches" { 3 } else { 4 };
    let end = match name {
        _ if !is_victim => None,
        "killed-in-forward" => Some(End::Forward),
        "killed-in-backward" => Some(End::Backward),
        "killed-in-update" => Some(End::Update),
        _ => None,
    };
    let pipeline = builder(model)
        .stages(RANKS)
        .micro_batches(micro_batches)
        .schedule(OneFOneB)
        .checkpoint(Always)
        .transport(Mortal { inner: mpi, end })
        .build();
    let mut pipeline = pipeline.map_err(|error| error.to_string())?;
    for step in 0..4 {
        if is_victim && step == STEP {
            match name {
                "stopped" => signal("STOP"),
                "panics-outside" => panic!("on purpose"),
                "exits" => std::process::exit(3),
                _ => {}
            }
        }
        let other = is_victim && name == "other-batch" && step == STEP;
        let (x, y) = batch(7, step as usize + usize::from(other));
        pipeline.step(x, y).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Where a rank is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// When it has run a forward, before the output is sent.
    Forward,
    /// When it has run a backward, before the gradient is sent.
    Backward,
    /// When all have voted for the update, before it updates.
    Update,
}

/// The round in which ranks vote for the update: they have compared terms and gathered reports
/// before.
const VOTE: u32 = 2;

/// A rank that doesn't live to the end.
struct Mortal {
    inner: Mpi,
    end: Option<End>,
}

#[async_trait]
impl Transport<Packet> for Mortal {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    async fn send(&self, to: usize, tag: Tag, value: Packet) -> Result<(), TransportError> {
        let here = tag.step == STEP && tag.micro_batch == MICRO_BATCH;
        let end = match tag.direction {
            Direction::Forward => Some(End::Forward),
            Direction::Backward => Some(End::Backward),
            Direction::Shared => None,
        };
        if here && end.is_some() && self.end == end {
            signal("KILL");
        }
        self.inner.send(to, tag, value).await
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<Packet, TransportError> {
        self.inner.recv(from, tag).await
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let gathered =
            <Mpi as Transport<Packet>>::all_gather(&self.inner, step, round, bytes).await;
        if (step, round, self.end) == (STEP, VOTE, Some(End::Update)) {
            signal("KILL");
        }
        gathered
    }

    fn abort(&self, step: u64, reason: &str) {
        <Mpi as Transport<Packet>>::abort(&self.inner, step, reason);
    }

    fn end_step(&self, step: u64) {
        <Mpi as Transport<Packet>>::end_step(&self.inner, step);
    }
}

/// Sends this process a signal that it can't escape.
fn signal(name: &str) {
    let process = std::process::id().to_string();
    let sent = Command::new("kill").args(["-s", name, &process]).status();
    assert!(sent.is_ok_and(|status| status.success()), "no signal was sent");
    // It may take a moment.
    thread::sleep(Duration::from_secs(1));
}
