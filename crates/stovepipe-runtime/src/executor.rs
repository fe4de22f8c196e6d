//! One rank's part of a step: actions in order, messages early, then the vote and the update.
//! Knows nothing of threads; `workers` runs one of these on each.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use futures::future::{BoxFuture, poll_fn};
use futures::stream::{FuturesUnordered, Stream};
use stovepipe_schedule::{
    Action, Compute, ComputeKind, Direction, Edge, Message, MicroBatch, Mode, Program, Rank, Span,
    Stage,
};
use stovepipe_transport::{Tag, Transport, TransportError};

use crate::{Agreement, Begin, Cause, StageCompute, StepError, StepPhase};

/// The rounds in which ranks gather in a step.
mod round {
    /// Ranks of several processes say what they are about to do.
    pub(super) const BEGUN: u32 = 0;
    /// Gradients are complete; carries the stages' reports.
    pub(super) const FINISHED: u32 = 1;
    /// Every stage is ready to update.
    pub(super) const PREPARED: u32 = 2;
    /// Every stage has updated, or says why not.
    pub(super) const UPDATED: u32 = 3;
}

/// What a rank is asked to do in one step.
#[derive(Debug)]
pub struct Job<'a, I> {
    /// Number of the step; must grow from call to call.
    pub step: u64,
    /// The program, the same on every rank.
    pub program: &'a Program,
    /// The batch, the same on every rank.
    pub input: &'a Arc<I>,
    /// The instant that times count from, the same on every rank of a process. Where ranks compare
    /// [`agreement`](Self::agreement), the instant of that instead.
    pub epoch: Instant,
    /// What to compare with the other ranks before the first action, if they are other processes.
    pub agreement: Option<&'a Agreement>,
}

/// What a rank did in one step.
#[derive(Debug)]
pub struct RankReport<O> {
    /// Every action with its times in seconds.
    pub spans: Vec<Span>,
    /// When the update ran.
    pub update: Option<Range<f64>>,
    /// What each of the rank's stages hands back.
    pub outputs: Vec<(Stage, O)>,
    /// What all stages reported, in stage order.
    pub reports: Vec<Vec<u8>>,
}

/// The stages of one rank.
#[derive(Debug)]
pub struct RankExecutor<C> {
    rank: Rank,
    stages: BTreeMap<Stage, C>,
}

type Sends<'t> = FuturesUnordered<BoxFuture<'t, Result<(), TransportError>>>;
type Receive<'t, V> = BoxFuture<'t, Result<V, TransportError>>;

/// What a step holds on one rank; dropped with the step.
struct InFlight<'t, V> {
    /// Values that have been produced or received and not yet been consumed or sent.
    values: HashMap<Message, V>,
    /// Receives posted ahead of their turn.
    receives: HashMap<Message, Receive<'t, V>>,
    sends: Sends<'t>,
}

impl<C: StageCompute> RankExecutor<C> {
    /// A rank with its stages.
    pub fn new(rank: Rank, stages: impl IntoIterator<Item = (Stage, C)>) -> Self {
        Self { rank, stages: stages.into_iter().collect() }
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// One of the rank's stages.
    pub fn stage_mut(&mut self, stage: Stage) -> Option<&mut C> {
        self.stages.get_mut(&stage)
    }

    /// Runs this rank's part of a step. Every rank of the transport's group has to.
    ///
    /// # Errors
    ///
    /// [`StepError`]. The step is then aborted on all ranks, and this rank's stages have abandoned it.
    pub async fn step<T>(
        &mut self,
        job: &Job<'_, C::Input>,
        transport: &T,
    ) -> Result<RankReport<C::Output>, StepError>
    where
        T: Transport<C::Value> + ?Sized,
    {
        let outcome = self.try_step(job, transport).await;
        if let Err(error) = &outcome {
            // Past the vote nothing can be taken back, and the others have been told already.
            if !error.poisons() && !error.is_known_to_all() {
                transport.abort(job.step, &error.to_string());
            }
            for stage in self.stages.values_mut() {
                // A stage whose clean-up panics too has nothing left to say.
                let _ = catch_unwind(AssertUnwindSafe(|| stage.abandon()));
            }
        }
        transport.end_step(job.step);
        outcome
    }

    async fn try_step<T>(
        &mut self,
        job: &Job<'_, C::Input>,
        transport: &T,
    ) -> Result<RankReport<C::Output>, StepError>
    where
        T: Transport<C::Value> + ?Sized,
    {
        self.check(job.program)?;
        let mut epoch = job.epoch;
        if let Some(agreement) = job.agreement {
            self.agree(job.step, agreement, transport).await?;
            epoch = Instant::now();
        }
        let job = &Job { epoch, ..*job };
        let plan = job.program.plan();
        self.each_stage(StepPhase::Begin, |stage, compute| {
            compute.begin(Begin {
                step: job.step,
                stage,
                stages: plan.stages(),
                micro_batches: plan.micro_batches(),
                mode: plan.mode(),
                input: job.input,
            })
        })?;
        let spans = self.run(job, transport).await?;

        let own = self.each_stage(StepPhase::Finish, |_, compute| compute.finish())?;
        let gathered = transport.all_gather(job.step, round::FINISHED, encode(&own)).await;
        let reports =
            self.by_stage(job.program, &gathered.map_err(|e| self.transport_error(e))?)?;

        let update = match plan.mode() {
            Mode::Training => Some(self.update(job, transport, &reports).await?),
            Mode::ForwardOnly => None,
        };
        let outputs = self.stages.iter_mut().map(|(stage, c)| (*stage, c.take_output())).collect();
        Ok(RankReport { spans, update, outputs, reports })
    }

    /// Contributes `bytes` to a gather beside the steps and returns what all ranks contributed.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub async fn gather<T>(
        &self,
        step: u64,
        bytes: Vec<u8>,
        transport: &T,
    ) -> Result<Vec<Vec<u8>>, StepError>
    where
        T: Transport<C::Value> + ?Sized,
    {
        let all = async {
            self.agree(step, &Agreement::new().with("the call", "gather"), transport).await?;
            let all = transport.all_gather(step, round::FINISHED, bytes).await;
            all.map_err(|e| self.transport_error(e))
        };
        let outcome = all.await;
        if let Some(error) = outcome.as_ref().err().filter(|error| !error.is_known_to_all()) {
            transport.abort(step, &error.to_string());
        }
        transport.end_step(step);
        outcome
    }

    /// Makes sure that all ranks are about to do the same.
    async fn agree<T>(
        &self,
        step: u64,
        agreement: &Agreement,
        transport: &T,
    ) -> Result<(), StepError>
    where
        T: Transport<C::Value> + ?Sized,
    {
        let said = transport.all_gather(step, round::BEGUN, agreement.encode()).await;
        Agreement::compare(&said.map_err(|e| self.transport_error(e))?)
    }

    fn check(&self, program: &Program) -> Result<(), StepError> {
        let rank = self.rank.index();
        let plan = program.plan();
        if rank >= plan.ranks() {
            let ranks = plan.ranks();
            return Err(StepError::Setup(format!(
                "the program has {ranks} ranks, this is rank {rank}"
            )));
        }
        let needed = plan.stages_of(rank);
        if !self.stages.keys().eq(needed) {
            let held: Vec<_> = self.stages.keys().map(|s| s.index()).collect();
            let needed: Vec<_> = needed.iter().map(|s| s.index()).collect();
            return Err(StepError::Setup(format!(
                "the program expects stages {needed:?} on rank {rank}, which holds {held:?}"
            )));
        }
        if plan.splits_backward() && !C::SPLITS_BACKWARD {
            return Err(StepError::Setup(
                "the plan splits backwards into I and W, which these stages can't: use a schedule \
                 made of F and B, such as gpipe or 1f1b"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Runs the program's actions.
    async fn run<T>(
        &mut self,
        job: &Job<'_, C::Input>,
        transport: &T,
    ) -> Result<Vec<Span>, StepError>
    where
        T: Transport<C::Value> + ?Sized,
    {
        let rank = self.rank;
        let failed = |source| StepError::Transport { rank, source };
        let row = job.program.row(rank.index());
        let mut flight = InFlight {
            values: HashMap::new(),
            receives: HashMap::new(),
            sends: FuturesUnordered::new(),
        };
        let mut spans = Vec::with_capacity(row.len());
        for (position, action) in row.iter().enumerate() {
            let start = job.epoch.elapsed().as_secs_f64();
            match action {
                Action::Compute(compute) => {
                    // The receives of the next action, so that they are under way during this one.
                    let ahead = row[position + 1..].iter().take_while(|a| a.compute().is_none());
                    for message in ahead.filter_map(received) {
                        let peer = job.program.rank_of(message.from).index();
                        let receive = transport.recv(peer, tag(job.step, &message));
                        flight.receives.entry(message).or_insert(receive);
                    }
                    flight.poll_once().await.map_err(failed)?;
                    self.compute(job.program, *compute, &mut flight.values)?;
                }
                Action::Send(message) => {
                    let value = take(&mut flight.values, message)?;
                    let peer = job.program.rank_of(message.to).index();
                    flight.sends.push(transport.send(peer, tag(job.step, message), value));
                    flight.poll_once().await.map_err(failed)?;
                }
                Action::Recv(message) => {
                    if !flight.values.contains_key(message) {
                        let peer = job.program.rank_of(message.from).index();
                        let receive = flight.receives.remove(message);
                        let receive =
                            receive.unwrap_or_else(|| transport.recv(peer, tag(job.step, message)));
                        let value = flight.receive(receive).await.map_err(failed)?;
                        flight.values.insert(*message, value);
                    }
                }
            }
            spans.push(Span { action: *action, start, end: job.epoch.elapsed().as_secs_f64() });
        }
        flight.drain_sends().await.map_err(failed)?;
        Ok(spans)
    }

    /// Runs one compute action: takes its inputs from `values`, leaves its outputs there.
    fn compute(
        &mut self,
        program: &Program,
        action: Compute,
        values: &mut HashMap<Message, C::Value>,
    ) -> Result<(), StepError> {
        let Compute { kind, stage, micro_batch } = action;
        let edges = program.edges();
        let message = |direction, Edge { from, to }| {
            let (from, to) = if direction == Direction::Forward { (from, to) } else { (to, from) };
            Message { direction, from, to, micro_batch }
        };
        let up = |edge| message(Direction::Forward, edge);
        let down = |edge| message(Direction::Backward, edge);
        let (needed, produced): (Vec<Message>, Vec<Message>) = match kind {
            ComputeKind::Forward => {
                (edges.incoming(stage).map(up).collect(), edges.outgoing(stage).map(up).collect())
            }
            ComputeKind::Backward | ComputeKind::BackwardInput => (
                edges.outgoing(stage).map(down).collect(),
                edges.incoming(stage).map(down).collect(),
            ),
            ComputeKind::Recompute | ComputeKind::BackwardWeight => Default::default(),
        };
        let inputs = needed.iter().map(|m| take(values, m)).collect::<Result<Vec<_>, _>>()?;
        let retention = program.retention().of(stage, micro_batch);
        let phase = match kind {
            ComputeKind::Forward => StepPhase::Forward,
            ComputeKind::Recompute => StepPhase::Recompute,
            ComputeKind::Backward => StepPhase::Backward,
            ComputeKind::BackwardInput => StepPhase::BackwardInput,
            ComputeKind::BackwardWeight => StepPhase::BackwardWeight,
        };
        let span = tracing::debug_span!("action", rank = %self.rank, %action);
        let outputs = span.in_scope(|| {
            self.guard(stage, Some(micro_batch), phase, |compute| match kind {
                ComputeKind::Forward => compute.forward(micro_batch, inputs, retention),
                ComputeKind::Recompute => {
                    compute.recompute(micro_batch, retention).map(|()| Vec::new())
                }
                ComputeKind::Backward => compute.backward(micro_batch, inputs, retention),
                ComputeKind::BackwardInput => {
                    compute.backward_input(micro_batch, inputs, retention)
                }
                ComputeKind::BackwardWeight => {
                    compute.backward_weight(micro_batch).map(|()| Vec::new())
                }
            })
        })?;
        if outputs.len() < produced.len() {
            let cause = Cause::Values { returned: outputs.len(), edges: produced.len() };
            return Err(self.stage_error(stage, Some(micro_batch), phase, cause));
        }
        values.extend(produced.into_iter().zip(outputs));
        Ok(())
    }

    /// The vote, and the update if it is unanimous.
    async fn update<T>(
        &mut self,
        job: &Job<'_, C::Input>,
        transport: &T,
        reports: &[Vec<u8>],
    ) -> Result<Range<f64>, StepError>
    where
        T: Transport<C::Value> + ?Sized,
    {
        let start = job.epoch.elapsed().as_secs_f64();
        self.each_stage(StepPhase::Prepare, |_, compute| compute.prepare(reports))?;
        let vote = transport.all_gather(job.step, round::PREPARED, Vec::new()).await;
        vote.map_err(|e| self.transport_error(e))?;

        let committed = self.each_stage(StepPhase::Update, |_, compute| compute.commit());
        let end = job.epoch.elapsed().as_secs_f64();
        // An empty text is success.
        let verdict = committed.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let verdicts = transport.all_gather(job.step, round::UPDATED, verdict.into_bytes()).await;
        committed?;
        let verdicts =
            verdicts.map_err(|source| StepError::Unconfirmed { rank: self.rank, source })?;
        match verdicts.iter().find(|verdict| !verdict.is_empty()) {
            Some(reason) => Err(StepError::UpdateElsewhere {
                reason: String::from_utf8_lossy(reason).into_owned(),
            }),
            None => Ok(start..end),
        }
    }

    fn each_stage<R>(
        &mut self,
        phase: StepPhase,
        mut run: impl FnMut(Stage, &mut C) -> Result<R, C::Error>,
    ) -> Result<Vec<R>, StepError> {
        let stages: Vec<Stage> = self.stages.keys().copied().collect();
        stages
            .into_iter()
            .map(|stage| self.guard(stage, None, phase, |compute| run(stage, compute)))
            .collect()
    }

    /// Calls into a stage; an error or a panic comes back with its whereabouts.
    fn guard<R>(
        &mut self,
        stage: Stage,
        micro_batch: Option<MicroBatch>,
        phase: StepPhase,
        run: impl FnOnce(&mut C) -> Result<R, C::Error>,
    ) -> Result<R, StepError> {
        let Some(compute) = self.stages.get_mut(&stage) else {
            return Err(StepError::Setup(format!("stage {stage} isn't on rank {}", self.rank)));
        };
        let cause = match catch_unwind(AssertUnwindSafe(|| run(compute))) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => Cause::Error(Box::new(error)),
            Err(payload) => {
                let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
                Cause::Panic(text.unwrap_or_else(|| "without a message".to_owned()))
            }
        };
        Err(self.stage_error(stage, micro_batch, phase, cause))
    }

    fn stage_error(
        &self,
        stage: Stage,
        micro_batch: Option<MicroBatch>,
        phase: StepPhase,
        cause: Cause,
    ) -> StepError {
        StepError::Stage { rank: self.rank, stage, micro_batch, phase, cause }
    }

    fn transport_error(&self, source: TransportError) -> StepError {
        StepError::Transport { rank: self.rank, source }
    }

    /// Sorts what the ranks reported by stage.
    fn by_stage(&self, program: &Program, gathered: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, StepError> {
        let plan = program.plan();
        let mut reports = vec![Vec::new(); plan.stages()];
        for (rank, bytes) in gathered.iter().enumerate() {
            let decoded = decode(bytes, plan.stages_of(rank).len()).ok_or_else(|| {
                StepError::Setup(format!(
                    "rank {rank} reports for other stages: do all ranks run the same program?"
                ))
            })?;
            for (stage, report) in plan.stages_of(rank).iter().copied().zip(decoded) {
                reports[stage.index()] = report;
            }
        }
        Ok(reports)
    }
}

impl<V> InFlight<'_, V> {
    /// Gives everything that is under way a chance to start or to end, without waiting.
    async fn poll_once(&mut self) -> Result<(), TransportError> {
        poll_fn(|cx| {
            let mut arrived = Vec::new();
            for (message, receive) in &mut self.receives {
                if let Poll::Ready(value) = receive.as_mut().poll(cx) {
                    arrived.push((*message, value));
                }
            }
            for (message, value) in arrived {
                self.receives.remove(&message);
                match value {
                    Ok(value) => drop(self.values.insert(message, value)),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            Poll::Ready(poll_sends(&mut self.sends, cx).map(drop))
        })
        .await
    }

    /// Waits for a message while sends go on.
    async fn receive(&mut self, mut receive: Receive<'_, V>) -> Result<V, TransportError> {
        poll_fn(|cx| {
            if let Err(error) = poll_sends(&mut self.sends, cx) {
                return Poll::Ready(Err(error));
            }
            receive.as_mut().poll(cx)
        })
        .await
    }

    /// Waits until everything sent has been handed over.
    async fn drain_sends(&mut self) -> Result<(), TransportError> {
        poll_fn(|cx| match poll_sends(&mut self.sends, cx) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }
}

/// Advances the sends; true once none is left.
fn poll_sends(
    sends: &mut Sends<'_>,
    cx: &mut std::task::Context<'_>,
) -> Result<bool, TransportError> {
    loop {
        match Pin::new(&mut *sends).poll_next(cx) {
            Poll::Ready(None) => return Ok(true),
            Poll::Ready(Some(sent)) => sent?,
            Poll::Pending => return Ok(false),
        }
    }
}

fn received(action: &Action) -> Option<Message> {
    match action {
        Action::Recv(message) => Some(*message),
        Action::Compute(_) | Action::Send(_) => None,
    }
}

fn take<V>(values: &mut HashMap<Message, V>, message: &Message) -> Result<V, StepError> {
    values.remove(message).ok_or_else(|| {
        StepError::Setup(format!(
            "{} has nothing to deliver: the program is not valid",
            Action::Send(*message)
        ))
    })
}

fn tag(step: u64, message: &Message) -> Tag {
    Tag {
        step,
        micro_batch: message.micro_batch.index() as u32,
        from_stage: message.from.index() as u32,
        to_stage: message.to.index() as u32,
        direction: match message.direction {
            Direction::Forward => stovepipe_transport::Direction::Forward,
            Direction::Backward => stovepipe_transport::Direction::Backward,
        },
    }
}

/// Each report behind its length.
fn encode(reports: &[Vec<u8>]) -> Vec<u8> {
    let parts = reports
        .iter()
        .flat_map(|r| (r.len() as u64).to_le_bytes().into_iter().chain(r.iter().copied()));
    parts.collect()
}

fn decode(mut bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let reports = (0..count)
        .map(|_| {
            let (length, rest) = bytes.split_first_chunk::<8>()?;
            let (report, rest) =
                rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            bytes = rest;
            Some(report.to_vec())
        })
        .collect::<Option<Vec<_>>>()?;
    bytes.is_empty().then_some(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_round_trip_and_nonsense_is_refused() {
        let reports = vec![vec![1, 2, 3], vec![], vec![9]];
        let bytes = encode(&reports);
        assert_eq!(decode(&bytes, 3), Some(reports));
        assert_eq!(decode(&bytes, 2), None);
        assert_eq!(decode(&bytes, 4), None);
        assert_eq!(decode(&[255; 8], 1), None);
    }
}
