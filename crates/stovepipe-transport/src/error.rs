//! [`TransportError`]: why an operation didn't happen, and what to do then. It says
//! nothing of what the failing rank was computing; the caller adds that.

use thiserror::Error;

use crate::tag::Tag;

/// The reason why an operation of a [`Transport`](crate::Transport) failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// A rank ended the step for everyone.
    #[error(
        "step {step} was aborted by rank {by}: {reason}; end the step on this rank too, \
         then decide whether to run it again"
    )]
    Aborted {
        /// The step that was aborted.
        step: u64,
        /// The rank that aborted it first.
        by: usize,
        /// The reason that it gave.
        reason: String,
    },
    /// The peer's endpoint is gone, so the step can't be completed.
    #[error(
        "rank {rank} is gone; end the step, find out why that rank stopped, and build a new \
         group of endpoints"
    )]
    PeerGone {
        /// The rank that is gone.
        rank: usize,
    },
    /// The peer already ended the step: it will neither send, claim nor gather any more.
    #[error(
        "rank {rank} has already ended step {step} and takes no further part in it; check \
         that both ranks run programs of the same plan"
    )]
    PeerEnded {
        /// The rank that ended the step.
        rank: usize,
        /// The step.
        step: u64,
    },
    /// The group has no such rank.
    #[error("there is no rank {rank} among {ranks}; address ranks below {ranks}")]
    NoSuchRank {
        /// The rank that was addressed.
        rank: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A rank addressed itself.
    #[error(
        "rank {rank} addressed itself; hand the value over directly, stages of one rank need \
         no message"
    )]
    SelfMessage {
        /// The rank.
        rank: usize,
    },
    /// Two unclaimed messages carry the same tag from the same rank.
    #[error("a message with the same tag is still unclaimed ({tag}); send each tag once per step")]
    Duplicate {
        /// The tag both messages carry.
        tag: Tag,
    },
    /// Two receives wait for the same message.
    #[error(
        "another receive already waits for this message ({tag}); drop it before posting a new one"
    )]
    AlreadyReceiving {
        /// The tag both receives wait for.
        tag: Tag,
    },
    /// A rank joined the same round of a collective twice.
    #[error(
        "this rank already joined round {round} of step {step}; number the collectives of a \
         step upwards, and keep a collective's future until it resolves"
    )]
    RoundTwice {
        /// The step.
        step: u64,
        /// The round.
        round: u32,
    },
    /// This rank already ended the step.
    #[error("this rank has already ended step {step}; use a higher step number")]
    Ended {
        /// The step.
        step: u64,
    },
    /// The way to a peer failed, or what came over it made no sense.
    #[error("the link to rank {rank} failed: {reason}; abort the step")]
    Link {
        /// The rank at the other end.
        rank: usize,
        /// The failure that the link reported.
        reason: String,
    },
}
