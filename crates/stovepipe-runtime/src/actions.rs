//! Runs the actions of a program on one rank, in their order. The numbers are those of the drawing
//! in `executor`.

use stovepipe_schedule::{
    Action, Compute, ComputeKind, Direction, Edge, Message, MicroBatch, Program, Span, Stage,
    StageRetention,
};
use stovepipe_transport::Transport;

use crate::compute::StageCompute;
use crate::error::{Cause, StepError, StepPhase};
use crate::in_flight::{ArrivalHook, InFlight};
use crate::job::Job;
use crate::stages::RankStages;

/// (3) Runs the rank's actions, and says when each ran.
pub(crate) async fn run<C, T>(
    stages: &mut RankStages<C>,
    job: &Job<'_, C::Input>,
    transport: &T,
    arrival_hook: Option<&ArrivalHook<C::Value>>,
) -> Result<Vec<Span>, StepError>
where
    C: StageCompute,
    T: Transport<C::Value> + ?Sized,
{
    let row = job.program.row(stages.rank.index());
    let mut flight = InFlight::new(stages.rank, job.step, job.program, transport, arrival_hook);
    let mut spans = Vec::with_capacity(row.len());
    for (position, action) in row.iter().enumerate() {
        let start = job.epoch.elapsed().as_secs_f64();
        match action {
            Action::Compute(action) => {
                let next = row[position + 1..].iter().take_while(|a| a.compute().is_none());
                next.filter_map(received).for_each(|message| flight.post_receive(message));
                flight.poll_once().await?;
                compute(stages, job.program, *action, &mut flight)?;
            }
            Action::Send(message) => {
                flight.post_send(message)?;
                flight.poll_once().await?;
            }
            Action::Recv(message) => flight.wait_for(message).await?,
        }
        spans.push(Span { action: *action, start, end: job.epoch.elapsed().as_secs_f64() });
    }
    flight.drain_sends().await?;
    Ok(spans)
}

/// (3.2) Runs one compute action: takes its inputs from the values in flight, leaves its outputs
/// there.
fn compute<C, T>(
    stages: &mut RankStages<C>,
    program: &Program,
    action: Compute,
    flight: &mut InFlight<'_, C::Value, T>,
) -> Result<(), StepError>
where
    C: StageCompute,
    T: Transport<C::Value> + ?Sized,
{
    let Compute { kind, stage, micro_batch } = action;
    let (needed, produced) = messages(program, action);
    let inputs = needed.iter().map(|m| flight.take(m)).collect::<Result<Vec<_>, _>>()?;
    let retention = program.retention().of(stage, micro_batch);
    let rank = stages.rank;
    let span = tracing::debug_span!("action", rank = %rank, %action);
    let outputs = span.in_scope(|| {
        stages.call(stage, Some(micro_batch), phase(kind), |compute| {
            call(compute, kind, micro_batch, inputs, retention)
        })
    })?;
    if outputs.len() < produced.len() {
        return Err(StepError::Stage {
            rank,
            stage,
            micro_batch: Some(micro_batch),
            phase: phase(kind),
            cause: Cause::Values { returned: outputs.len(), edges: produced.len() },
        });
    }
    flight.keep(produced.into_iter().zip(outputs));
    Ok(())
}

/// The values that an action needs, and those that it produces, in the order of the stage's edges.
fn messages(
    program: &Program,
    Compute { kind, stage, micro_batch }: Compute,
) -> (Vec<Message>, Vec<Message>) {
    let edges = program.edges();
    let up = |Edge { from, to }: Edge| message(Direction::Forward, from, to, micro_batch);
    let down = |Edge { from, to }: Edge| message(Direction::Backward, to, from, micro_batch);
    match kind {
        ComputeKind::Forward => {
            (edges.incoming(stage).map(up).collect(), edges.outgoing(stage).map(up).collect())
        }
        ComputeKind::Backward | ComputeKind::BackwardInput => {
            let returns = |edge: &Edge| edges.carries_gradient(edge);
            let needed = edges.outgoing(stage).filter(returns).map(down).collect();
            (needed, edges.incoming(stage).filter(returns).map(down).collect())
        }
        ComputeKind::Recompute | ComputeKind::BackwardWeight => Default::default(),
    }
}

fn message(direction: Direction, from: Stage, to: Stage, micro_batch: MicroBatch) -> Message {
    Message { direction, from, to, micro_batch }
}

fn call<C: StageCompute>(
    compute: &mut C,
    kind: ComputeKind,
    micro_batch: MicroBatch,
    inputs: Vec<C::Value>,
    retention: &StageRetention,
) -> Result<Vec<C::Value>, C::Error> {
    match kind {
        ComputeKind::Forward => compute.forward(micro_batch, inputs, retention),
        ComputeKind::Recompute => compute.recompute(micro_batch, retention).map(|()| Vec::new()),
        ComputeKind::Backward => compute.backward(micro_batch, inputs, retention),
        ComputeKind::BackwardInput => compute.backward_input(micro_batch, inputs, retention),
        ComputeKind::BackwardWeight => compute.backward_weight(micro_batch).map(|()| Vec::new()),
    }
}

fn phase(kind: ComputeKind) -> StepPhase {
    match kind {
        ComputeKind::Forward => StepPhase::Forward,
        ComputeKind::Recompute => StepPhase::Recompute,
        ComputeKind::Backward => StepPhase::Backward,
        ComputeKind::BackwardInput => StepPhase::BackwardInput,
        ComputeKind::BackwardWeight => StepPhase::BackwardWeight,
    }
}

fn received(action: &Action) -> Option<Message> {
    match action {
        Action::Recv(message) => Some(*message),
        Action::Compute(_) | Action::Send(_) => None,
    }
}
