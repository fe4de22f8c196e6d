//! One rank's part of a step. Knows nothing of threads; `workers` runs one of these on each.
//!
//! ```text
//!  this rank                                                            the other ranks
//!
//!  1 agree    ── what it is about to do, gathered (round BEGUN) ───────▶ only between processes
//!  2 begin    every stage is told of the step
//!  3 run      the actions of the program, in their order:
//!     3.1     the receives that follow a compute action are posted
//!     3.2     the stage computes: inputs are taken, outputs are kept
//!     3.3     a send is posted, and nobody waits for it ───────────────▶ a value
//!     3.4     a receive waits, while sends go on ◀────────────────────── a value
//!     3.5     what was sent has been handed over
//!     3.6     stages give each other what they share ◀────────────────▶ values; only in training
//!  4 finish   ── reports of the stages, gathered (round FINISHED) ─────▶
//!  5 prepare  every stage makes ready
//!             ── the vote: to be there is a yes (round PREPARED) ──────▶
//!  6 commit   every stage updates; nothing can be taken back
//!  7 confirm  ── whether it has updated (round UPDATED) ───────────────▶
//! ```
//!
//! A failure in 1 to 5 aborts the step on all ranks, and stages forget it. An evaluation ends with
//! 4.

use std::fmt;
use std::time::Instant;

use stovepipe_schedule::{Mode, Rank, Stage};
use stovepipe_transport::Transport;

use crate::agreement::Agreement;
use crate::compute::{Begin, StageCompute};
use crate::error::{StepError, StepPhase};
use crate::in_flight::ArrivalHook;
use crate::job::{Job, RankReport};
use crate::stages::RankStages;
use crate::{actions, ending, rounds, sharing};

/// The stages of one rank, and how they run.
pub struct RankExecutor<C: StageCompute> {
    stages: RankStages<C>,
    arrival_hook: Option<ArrivalHook<C::Value>>,
}

impl<C: StageCompute> RankExecutor<C> {
    /// A rank with its stages.
    pub fn new(rank: Rank, stages: impl IntoIterator<Item = (Stage, C)>) -> Self {
        Self { stages: RankStages::new(rank, stages), arrival_hook: None }
    }

    /// Passes every value through `hook` right after it was received.
    pub(crate) fn with_arrival_hook(self, arrival_hook: Option<ArrivalHook<C::Value>>) -> Self {
        Self { arrival_hook, ..self }
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.stages.rank
    }

    /// One of the rank's stages.
    pub fn stage_mut(&mut self, stage: Stage) -> Option<&mut C> {
        self.stages.get_mut(stage)
    }

    /// Runs this rank's part of a step. Every rank of the transport's group has to.
    ///
    /// # Errors
    ///
    /// [`StepError`]. The step is then aborted on all ranks, and this rank's stages have abandoned
    /// it.
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
            // Past the vote (6) nothing can be taken back, and the others have been told already.
            if !error.poisons() && !error.is_known_to_all() {
                transport.abort(job.step, &error.to_string());
            }
            self.stages.abandon();
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
        let stages = &mut self.stages;
        stages.check(job.program)?;
        let mut epoch = job.epoch;
        if let Some(agreement) = job.agreement {
            agree(stages, job.step, agreement, transport).await?;
            epoch = Instant::now();
        }
        let job = &Job { epoch, ..*job };
        begin(stages, job)?;
        let arrival_hook = self.arrival_hook.as_ref();
        let spans = actions::run(stages, job, transport, arrival_hook).await?;
        if job.program.plan().mode() == Mode::Training {
            sharing::share(stages, job, transport, arrival_hook).await?;
        }
        let reports = ending::report(stages, job, transport).await?;
        let update = match job.program.plan().mode() {
            Mode::Training => Some(ending::update(stages, job, transport, &reports).await?),
            Mode::ForwardOnly => None,
        };
        Ok(RankReport { spans, update, outputs: stages.take_outputs(), reports })
    }

    /// Contributes `bytes` to a gather besides the steps and returns what all ranks contributed.
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
            let agreement = Agreement::new().with("the call", "gather");
            agree(&self.stages, step, &agreement, transport).await?;
            let all = transport.all_gather(step, rounds::FINISHED, bytes).await;
            all.map_err(|e| self.stages.transport_error(e))
        };
        let outcome = all.await;
        if let Some(error) = outcome.as_ref().err().filter(|error| !error.is_known_to_all()) {
            transport.abort(step, &error.to_string());
        }
        transport.end_step(step);
        outcome
    }
}

impl<C: StageCompute + fmt::Debug> fmt::Debug for RankExecutor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankExecutor").field("stages", &self.stages).finish_non_exhaustive()
    }
}

/// (1) Makes sure that all ranks are about to do the same.
async fn agree<C, T>(
    stages: &RankStages<C>,
    step: u64,
    agreement: &Agreement,
    transport: &T,
) -> Result<(), StepError>
where
    C: StageCompute,
    T: Transport<C::Value> + ?Sized,
{
    let said = transport.all_gather(step, rounds::BEGUN, agreement.encode()).await;
    Agreement::compare(&said.map_err(|e| stages.transport_error(e))?)
}

/// (2) Tells every stage of the step.
fn begin<C: StageCompute>(
    stages: &mut RankStages<C>,
    job: &Job<'_, C::Input>,
) -> Result<(), StepError> {
    let plan = job.program.plan();
    let told = stages.call_each(StepPhase::Begin, |stage, compute| {
        compute.begin(Begin {
            step: job.step,
            stage,
            stages: plan.stages(),
            micro_batches: plan.micro_batches(),
            mode: plan.mode(),
            input: job.input,
        })
    });
    told.map(drop)
}
