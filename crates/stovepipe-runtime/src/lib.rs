//! The executor: runs a pipeline program on one worker per rank, generic over what a stage
//! computes.
//!
//! It takes a [`Program`](stovepipe_schedule::Program) and knows neither the schedule that wrote
//! it, nor a checkpoint policy, nor a tensor library. Values travel through any
//! [`Transport`](stovepipe_transport::Transport). A [`StageCompute`] does the work;
//! [`RankExecutor`] runs one rank's part of a step on the calling thread; [`Workers`] runs all
//! ranks on threads of this process, or one rank among those of other processes.
//!
//! A step either updates every stage or none: ranks vote once all their gradients are complete. A
//! failure anywhere ends the step on all ranks, as soon as the action each is in ends, with an
//! error that names rank, stage, micro-batch and phase.

mod actions;
mod agreement;
mod compute;
mod ending;
mod error;
mod executor;
mod in_flight;
mod job;
mod rank_thread;
mod reports;
mod rounds;
mod setup;
mod sharing;
mod stages;
mod worker;
mod workers;

pub use agreement::Agreement;
pub use compute::{Begin, StageCompute};
pub use error::{Cause, StepError, StepPhase};
pub use executor::RankExecutor;
pub use job::{Job, RankReport};
pub use setup::{PlainThread, RANK_STACK, RankSetup, RankThread};
pub use workers::{StepReport, Workers};
