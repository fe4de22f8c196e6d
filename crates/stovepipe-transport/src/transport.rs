//! [`Transport`]: one rank's view of the group, and the contract behind it. The trait has
//! no default methods and no helpers, so that it can stay as it is.

use async_trait::async_trait;

use crate::error::TransportError;
use crate::tag::Tag;

/// One rank's endpoint in a group of ranks that run a step together.
///
/// Values of type `V` move from rank to rank; small byte strings are gathered from all of
/// them; any rank can end a step for everyone.
///
/// # Contract
///
/// An implementor must keep these rules ([`conformance`](crate::conformance) checks it):
///
/// - **Futures are lazy and independent.** Nothing happens before an operation's first
///   poll. The caller holds many operations in flight and polls them in any order; none
///   may need another one of the same rank to be finished first, and none may block the
///   thread. In particular two neighbours that both send before they receive must both
///   come through, as long as each also polls its receive.
/// - **Matching is by (`from`, `tag`), never by order of arrival.** Messages of different
///   steps are as distinct as any other two. Each tag is sent once.
/// - **A receive may be posted ahead**: created and polled long before the message is sent.
/// - **A dropped receive loses nothing.** The message leaves the mailbox in the very poll
///   that returns it. A later receive for the same tag gets it.
/// - **Wakers:** an operation that returns `Pending` wakes the waker of its *latest* poll,
///   no other. Waking too often is allowed, waking too rarely is not.
/// - **Ranks may be a step apart.** A rank may send, gather or abort in a step that its
///   peers haven't begun, and those have to find it when they get there. Ending a step
///   leaves later ones untouched.
/// - **Abort comes first.** Once a rank has learnt of an abort, every operation of that
///   step fails on it, even one whose message is already there. If several ranks abort,
///   the first abort that a rank learns of stands on that rank.
/// - **Nothing waits for the dead.** Where a peer is known to be gone (or to have ended the
///   step) an operation that needs it fails with [`PeerGone`](TransportError::PeerGone)
///   ([`PeerEnded`](TransportError::PeerEnded)) instead of pending. Whatever the peer
///   had sent or contributed before still counts.
///
/// The caller's side: each tag is sent once, at most one receive waits for a tag, all ranks
/// call the same rounds, step numbers only grow, and each rank calls
/// [`end_step`](Self::end_step) once after every step.
///
/// A right receive leaves the message where it is until it can be returned:
///
/// ```text
/// poll:  lock; if the mailbox has (from, tag), remove it and return Ready; else keep the waker
/// ```
///
/// A wrong one takes the message and awaits something else before returning it; dropped in
/// between, the message is lost:
///
/// ```text
/// let bytes = self.socket.next().await?;
/// self.pool.spawn(decode(bytes)).await
/// ```
///
/// # Example
///
/// A transport around another one, which counts the messages that a rank sends:
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use async_trait::async_trait;
/// use futures::executor::block_on;
/// use stovepipe_transport::{Direction, InProcess, Tag, Transport, TransportError};
///
/// struct Counted<T> {
///     inner: T,
///     sent: AtomicUsize,
/// }
///
/// #[async_trait]
/// impl<V: Send + 'static, T: Transport<V>> Transport<V> for Counted<T> {
///     fn rank(&self) -> usize {
///         self.inner.rank()
///     }
///     fn ranks(&self) -> usize {
///         self.inner.ranks()
///     }
///     async fn send(&self, to: usize, tag: Tag, value: V) -> Result<(), TransportError> {
///         self.inner.send(to, tag, value).await?;
///         self.sent.fetch_add(1, Ordering::Relaxed);
///         Ok(())
///     }
///     async fn recv(&self, from: usize, tag: Tag) -> Result<V, TransportError> {
///         self.inner.recv(from, tag).await
///     }
///     async fn all_gather(
///         &self,
///         step: u64,
///         round: u32,
///         bytes: Vec<u8>,
///     ) -> Result<Vec<Vec<u8>>, TransportError> {
///         self.inner.all_gather(step, round, bytes).await
///     }
///     fn abort(&self, step: u64, reason: &str) {
///         self.inner.abort(step, reason);
///     }
///     fn end_step(&self, step: u64) {
///         self.inner.end_step(step);
///     }
/// }
///
/// let group: Vec<_> = InProcess::<u32>::group(2)
///     .into_iter()
///     .map(|inner| Counted { inner, sent: AtomicUsize::new(0) })
///     .collect();
/// let direction = Direction::Forward;
/// let tag = Tag { step: 0, micro_batch: 0, from_stage: 0, to_stage: 1, direction };
/// let value = block_on(async {
///     // Posted ahead of the send, and both held in flight.
///     let (value, sent) = futures::join!(group[1].recv(0, tag), group[0].send(1, tag, 7));
///     sent.and(value)
/// });
/// assert_eq!(value, Ok(7));
/// assert_eq!(group[0].sent.load(Ordering::Relaxed), 1);
/// ```
///
/// # Errors
///
/// Every operation fails with [`TransportError::Ended`] if this rank ended the step, with
/// [`TransportError::Aborted`] if some rank aborted it, and with
/// [`TransportError::PeerGone`], [`TransportError::PeerEnded`] or [`TransportError::Link`]
/// if a peer can't do its part. A message to or from oneself is
/// [`TransportError::SelfMessage`], one to or from a rank outside the group
/// [`TransportError::NoSuchRank`].
///
/// # Panics
///
/// No method may panic, whatever its arguments. As with any future, polling one again after
/// it returned `Ready` may.
#[async_trait]
pub trait Transport<V: Send + 'static>: Send + Sync {
    /// This endpoint's rank, below [`ranks`](Self::ranks).
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn ranks(&self) -> usize;

    /// Sends `value` to rank `to`. Resolves when the value is handed over, which may be
    /// before anyone asked for it.
    ///
    /// While it is pending, other operations of this rank must still make progress.
    ///
    /// # Errors
    ///
    /// See [the trait](Self#errors); also [`TransportError::Duplicate`] where the transport
    /// can tell that a message with this tag is still unclaimed. The value is dropped.
    async fn send(&self, to: usize, tag: Tag, value: V) -> Result<(), TransportError>;

    /// Receives the value that rank `from` sends (or sent, or will send) with `tag`.
    ///
    /// # Errors
    ///
    /// See [the trait](Self#errors); also [`TransportError::Duplicate`] where only the
    /// receiver can tell, and [`TransportError::AlreadyReceiving`] if another receive waits
    /// for the same message.
    async fn recv(&self, from: usize, tag: Tag) -> Result<V, TransportError>;

    /// Every rank contributes `bytes`, which may be empty and of any length; every rank
    /// gets all contributions in rank order.
    ///
    /// `round` numbers the collectives of a step: all ranks call the same rounds in the
    /// same order. A contribution made by a first poll stands, even if the future is then
    /// dropped; a round can't be joined a second time.
    ///
    /// # Errors
    ///
    /// See [the trait](Self#errors); also [`TransportError::RoundTwice`].
    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError>;

    /// Ends `step` for all ranks: every pending and later operation of that step fails, on
    /// every rank, with [`TransportError::Aborted`] that carries this rank and `reason`.
    ///
    /// The first abort wins; further ones change nothing, nor does one of a step that this
    /// rank has ended. Doesn't wait for other ranks. Each rank still calls
    /// [`end_step`](Self::end_step).
    fn abort(&self, step: u64, reason: &str);

    /// Drops whatever this rank still holds of `step` and of earlier steps: unclaimed
    /// messages, abort marks.
    ///
    /// Called once by each rank after the step, successful or not. Pending and later
    /// operations of an ended step fail on this rank with [`TransportError::Ended`].
    /// Messages of an ended step that arrive later are dropped. Doesn't wait for other
    /// ranks, and takes nothing from them that they still need.
    fn end_step(&self, step: u64);
}
