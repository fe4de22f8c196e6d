//! Why a step failed: which rank, stage, micro-batch and phase.

use std::any::Any;
use std::fmt;

use stovepipe_schedule::{Action, MicroBatch, Rank, Stage};
use stovepipe_transport::TransportError;

/// The part of a step that a stage was in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StepPhase {
    /// At the start of the step.
    Begin,
    /// In the hook through which values pass when they arrive.
    Arrival,
    /// In `F`.
    Forward,
    /// In `R`.
    Recompute,
    /// In `B`.
    Backward,
    /// In `I`.
    BackwardInput,
    /// In `W`.
    BackwardWeight,
    /// Giving other stages what they need of this one's gradients, and taking what they give.
    Share,
    /// Reporting after the last action.
    Finish,
    /// Making ready for the update.
    Prepare,
    /// Updating.
    Update,
}

impl fmt::Display for StepPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begin => "start of the step",
            Self::Arrival => "arrival of a value",
            Self::Forward => "forward",
            Self::Recompute => "recomputation",
            Self::Backward => "backward",
            Self::BackwardInput => "backward of the input",
            Self::BackwardWeight => "backward of the weights",
            Self::Share => "exchange of shared gradients",
            Self::Finish => "end of the gradients",
            Self::Prepare => "preparation of the update",
            Self::Update => "update",
        })
    }
}

/// The cause of a failure in a stage.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The stage returned an error.
    Error(Box<dyn std::error::Error + Send + Sync>),
    /// The stage panicked, with this message.
    Panic(String),
    /// The stage returned too few values for its edges.
    Values {
        /// How many it returned.
        returned: usize,
        /// How many edges take one.
        edges: usize,
    },
}

impl Cause {
    /// The message of a panic, from what it was unwound with.
    pub(crate) fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panic(text.unwrap_or_else(|| "without a message".to_owned()))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panic(message) => write!(f, "panicked: {message}"),
            Self::Values { returned, edges } => {
                write!(f, "returned {returned} values, but {edges} edges take one each")
            }
        }
    }
}

/// The reason why a step failed.
///
/// Unless [`poisons`](Self::poisons) says otherwise, nothing has been updated and another step can
/// be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A stage failed.
    #[error("rank {rank}, stage {stage}, {}{phase}: {cause}", micro_batch.map(|m| format!("micro-batch {m}, ")).unwrap_or_default())]
    Stage {
        /// The rank that the stage lives on.
        rank: Rank,
        /// The stage.
        stage: Stage,
        /// The micro-batch, if it was working on one.
        micro_batch: Option<MicroBatch>,
        /// The part of the step that it was in.
        phase: StepPhase,
        /// The cause.
        cause: Cause,
    },
    /// A message didn't get through. If another rank aborted the step, its reason is the cause.
    #[error("rank {rank}: {source}")]
    Transport {
        /// The rank that noticed.
        rank: Rank,
        /// The error of the transport.
        source: TransportError,
    },
    /// Another rank failed inside its update.
    #[error(
        "the update failed elsewhere: {reason}; stages are out of step, so build the pipeline again from saved state"
    )]
    UpdateElsewhere {
        /// The reason that the other rank gives.
        reason: String,
    },
    /// This rank has updated, but can't learn whether the others have.
    #[error(
        "rank {rank} has updated but can't learn whether the others have: {source}; build the pipeline again from saved state"
    )]
    Unconfirmed {
        /// The rank that updated.
        rank: Rank,
        /// The error of the transport.
        source: TransportError,
    },
    /// An earlier update failed half-way.
    #[error(
        "an earlier update failed half-way ({reason}): build the pipeline again from saved state"
    )]
    Unusable {
        /// The failure.
        reason: String,
    },
    /// Ranks of several processes were about to run different steps.
    #[error(
        "rank {rank} differs from the others in {what}: {found} instead of {usual}; start the same program \
         with the same arguments on all ranks, and give all the same batches"
    )]
    Disagreement {
        /// The rank that differs.
        rank: Rank,
        /// Names what differs.
        what: String,
        /// Its value.
        found: String,
        /// The others' value.
        usual: String,
    },
    /// The program is made for another number of ranks.
    #[error(
        "the program has {program} ranks, the pipeline {pipeline}: plan for as many as there are"
    )]
    Ranks {
        /// How many the program has.
        program: usize,
        /// How many the pipeline has.
        pipeline: usize,
    },
    /// The program has no such rank.
    #[error("the program has {ranks} ranks, which count from 0, and this is rank {rank}")]
    NoRank {
        /// The rank that was to run it.
        rank: Rank,
        /// How many the program has.
        ranks: usize,
    },
    /// The program places other stages on the rank.
    #[error("the program expects stages {expected:?} on rank {rank}, which holds {held:?}")]
    Stages {
        /// The rank.
        rank: Rank,
        /// The numbers of the stages that the program places there.
        expected: Vec<usize>,
        /// The numbers of those that it has.
        held: Vec<usize>,
    },
    /// The plan splits backwards, and the stages can't.
    #[error(
        "the plan splits backwards into I and W, which these stages can't: use a schedule made of F and \
         B, such as gpipe or 1f1b"
    )]
    SplitBackward,
    /// There is no such stage in this process.
    #[error("there is no stage {stage} in this process")]
    NoStage {
        /// The stage.
        stage: Stage,
    },
    /// A visitor panicked; the stage may have been changed half-way.
    #[error("the visitor of stage {stage} panicked: its message stands above")]
    Visitor {
        /// The stage.
        stage: Stage,
    },
    /// An action needs a value that no action before it has made.
    #[error("{action} has nothing to deliver: the program is not valid")]
    Undelivered {
        /// The action that should deliver it.
        action: Action,
    },
    /// A rank reported for other stages than the program places on it.
    #[error("rank {rank} reports for other stages: do all ranks run the same program?")]
    Reports {
        /// The rank.
        rank: Rank,
    },
    /// The system gives no thread for a rank.
    #[error("rank {rank} can't have a thread: {source}")]
    NoThread {
        /// The rank.
        rank: Rank,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A rank's thread doesn't run its worker.
    #[error("the worker of rank {rank} hasn't started: {reason}")]
    NotStarted {
        /// The rank.
        rank: Rank,
        /// The reason.
        reason: String,
    },
    /// A worker's thread ended unexpectedly.
    #[error("the worker of rank {rank} is gone: build the pipeline again")]
    WorkerGone {
        /// Its rank.
        rank: Rank,
    },
}

impl StepError {
    /// Whether stages may have updated while others haven't, so that no further step may run.
    #[must_use]
    pub fn poisons(&self) -> bool {
        matches!(
            self,
            Self::Stage { phase: StepPhase::Update, .. }
                | Self::UpdateElsewhere { .. }
                | Self::Unconfirmed { .. }
                | Self::WorkerGone { .. }
        )
    }

    /// Whether all ranks find it out by themselves, from what they gathered.
    pub(crate) fn is_known_to_all(&self) -> bool {
        matches!(self, Self::Disagreement { .. })
    }

    /// Whether this only echoes a failure on another rank.
    #[must_use]
    pub fn is_echo(&self) -> bool {
        matches!(
            self,
            Self::UpdateElsewhere { .. }
                | Self::Unconfirmed { .. }
                | Self::Transport {
                    source: TransportError::Aborted { .. }
                        | TransportError::PeerGone { .. }
                        | TransportError::PeerEnded { .. },
                    ..
                }
        )
    }
}
