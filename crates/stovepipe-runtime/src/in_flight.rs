//! All that a step holds on one rank: values that wait for their action, receives that are posted,
//! and sends that are under way. The numbers are those of the drawing in `executor`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, poll_fn};
use futures::stream::{FuturesUnordered, Stream};
use stovepipe_schedule::{Action, Direction, Message, MicroBatch, Program, Rank, Stage};
use stovepipe_transport::{Tag, Transport, TransportError};

use crate::error::{Cause, StepError, StepPhase};

/// A function through which every value passes right after a rank has received it.
pub(crate) type ArrivalHook<V> = Arc<dyn Fn(V) -> V + Send + Sync>;

type Receive<'t, V> = BoxFuture<'t, Result<V, TransportError>>;
type Sends<'t> = FuturesUnordered<BoxFuture<'t, Result<(), TransportError>>>;

/// Values, receives and sends of one rank; dropped with the step.
pub(crate) struct InFlight<'t, V, T: ?Sized> {
    rank: Rank,
    step: u64,
    program: &'t Program,
    transport: &'t T,
    arrival_hook: Option<&'t ArrivalHook<V>>,
    /// Values that have been produced or received and not yet been consumed or sent.
    values: HashMap<Message, V>,
    /// Receives posted ahead of their turn.
    receives: HashMap<Message, Receive<'t, V>>,
    sends: Sends<'t>,
}

impl<'t, V, T> InFlight<'t, V, T>
where
    V: Send + 'static,
    T: Transport<V> + ?Sized,
{
    pub(crate) fn new(
        rank: Rank,
        step: u64,
        program: &'t Program,
        transport: &'t T,
        arrival_hook: Option<&'t ArrivalHook<V>>,
    ) -> Self {
        Self {
            rank,
            step,
            program,
            transport,
            arrival_hook,
            values: HashMap::new(),
            receives: HashMap::new(),
            sends: FuturesUnordered::new(),
        }
    }

    /// (3.1) Posts a receive, so that it is under way before its turn.
    pub(crate) fn post_receive(&mut self, message: Message) {
        let receive = self.receive(&message);
        self.receives.entry(message).or_insert(receive);
    }

    /// (3.2) Takes a value that an action needs.
    pub(crate) fn take(&mut self, message: &Message) -> Result<V, StepError> {
        let action = Action::Send(*message);
        self.values.remove(message).ok_or(StepError::Undelivered { action })
    }

    /// (3.2) Keeps the values that an action has produced.
    pub(crate) fn keep(&mut self, values: impl IntoIterator<Item = (Message, V)>) {
        self.values.extend(values);
    }

    /// (3.3) Posts the send of a value.
    pub(crate) fn post_send(&mut self, message: &Message) -> Result<(), StepError> {
        let value = self.take(message)?;
        let peer = self.program.rank_of(message.to).index();
        self.sends.push(self.transport.send(peer, tag(self.step, message), value));
        Ok(())
    }

    /// (3.4) Waits until a value has arrived, while sends go on.
    pub(crate) async fn wait_for(&mut self, message: &Message) -> Result<(), StepError> {
        if self.values.contains_key(message) {
            return Ok(());
        }
        let posted = self.receives.remove(message);
        let mut receive = posted.unwrap_or_else(|| self.receive(message));
        let value = poll_fn(|cx| match poll_sends(&mut self.sends, cx) {
            Ok(_) => receive.as_mut().poll(cx),
            Err(error) => Poll::Ready(Err(error)),
        });
        let value = value.await.map_err(|source| self.transport_error(source))?;
        self.arrived(*message, value)
    }

    /// (3.5) Waits until everything sent has been handed over.
    pub(crate) async fn drain_sends(&mut self) -> Result<(), StepError> {
        let drained = poll_fn(|cx| match poll_sends(&mut self.sends, cx) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        });
        drained.await.map_err(|source| self.transport_error(source))
    }

    /// Gives everything that is under way a chance to start or to end, without waiting.
    pub(crate) async fn poll_once(&mut self) -> Result<(), StepError> {
        let arrived = poll_fn(|cx| {
            let mut arrived = Vec::new();
            for (message, receive) in &mut self.receives {
                if let Poll::Ready(value) = receive.as_mut().poll(cx) {
                    arrived.push((*message, value));
                }
            }
            Poll::Ready(arrived)
        });
        for (message, value) in arrived.await {
            self.receives.remove(&message);
            let value = value.map_err(|source| self.transport_error(source))?;
            self.arrived(message, value)?;
        }
        let sent = poll_fn(|cx| Poll::Ready(poll_sends(&mut self.sends, cx)));
        sent.await.map(drop).map_err(|source| self.transport_error(source))
    }

    fn receive(&self, message: &Message) -> Receive<'t, V> {
        let peer = self.program.rank_of(message.from).index();
        self.transport.recv(peer, tag(self.step, message))
    }

    /// Lets a value through the hook, if there is one, and keeps it for its action.
    fn arrived(&mut self, message: Message, value: V) -> Result<(), StepError> {
        let place = (self.rank, message.to, Some(message.micro_batch));
        self.values.insert(message, hooked(self.arrival_hook, value, place)?);
        Ok(())
    }

    fn transport_error(&self, source: TransportError) -> StepError {
        StepError::Transport { rank: self.rank, source }
    }
}

/// Lets a value that has arrived at a place through the hook, if there is one.
pub(crate) fn hooked<V>(
    hook: Option<&ArrivalHook<V>>,
    value: V,
    (rank, stage, micro_batch): (Rank, Stage, Option<MicroBatch>),
) -> Result<V, StepError> {
    let Some(hook) = hook else { return Ok(value) };
    let hooked = catch_unwind(AssertUnwindSafe(|| hook(value)));
    hooked.map_err(|payload| StepError::Stage {
        rank,
        stage,
        micro_batch,
        phase: StepPhase::Arrival,
        cause: Cause::of_panic(payload.as_ref()),
    })
}

/// Advances the sends; true once none is left.
fn poll_sends(sends: &mut Sends<'_>, cx: &mut Context<'_>) -> Result<bool, TransportError> {
    loop {
        match Pin::new(&mut *sends).poll_next(cx) {
            Poll::Ready(None) => return Ok(true),
            Poll::Ready(Some(sent)) => sent?,
            Poll::Pending => return Ok(false),
        }
    }
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
