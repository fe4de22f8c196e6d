//! How a step ends: reports, the vote, the update, and what the others say of theirs. The numbers
//! are those of the drawing in `executor`.

use std::ops::Range;

use stovepipe_transport::Transport;

use crate::compute::StageCompute;
use crate::error::{StepError, StepPhase};
use crate::job::Job;
use crate::reports::{by_stage, encode};
use crate::rounds;
use crate::stages::RankStages;

/// (4) Lets stages report, and returns the reports of all stages in order.
pub(crate) async fn report<C, T>(
    stages: &mut RankStages<C>,
    job: &Job<'_, C::Input>,
    transport: &T,
) -> Result<Vec<Vec<u8>>, StepError>
where
    C: StageCompute,
    T: Transport<C::Value> + ?Sized,
{
    let own = stages.call_each(StepPhase::Finish, |_, compute| compute.finish())?;
    let gathered = transport.all_gather(job.step, rounds::FINISHED, encode(&own)).await;
    by_stage(job.program.plan(), &gathered.map_err(|e| stages.transport_error(e))?)
}

/// (5, 6, 7) The vote, and the update if it is unanimous.
pub(crate) async fn update<C, T>(
    stages: &mut RankStages<C>,
    job: &Job<'_, C::Input>,
    transport: &T,
    reports: &[Vec<u8>],
) -> Result<Range<f64>, StepError>
where
    C: StageCompute,
    T: Transport<C::Value> + ?Sized,
{
    let start = job.epoch.elapsed().as_secs_f64();
    stages.call_each(StepPhase::Prepare, |_, compute| compute.prepare(reports))?;
    let vote = transport.all_gather(job.step, rounds::PREPARED, Vec::new()).await;
    vote.map_err(|e| stages.transport_error(e))?;

    let committed = stages.call_each(StepPhase::Update, |_, compute| compute.commit());
    let end = job.epoch.elapsed().as_secs_f64();
    // An empty text is success.
    let verdict = committed.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let verdicts = transport.all_gather(job.step, rounds::UPDATED, verdict.into_bytes()).await;
    committed?;
    let verdicts =
        verdicts.map_err(|source| StepError::Unconfirmed { rank: stages.rank, source })?;
    match verdicts.iter().find(|verdict| !verdict.is_empty()) {
        Some(reason) => {
            Err(StepError::UpdateElsewhere { reason: String::from_utf8_lossy(reason).into_owned() })
        }
        None => Ok(start..end),
    }
}
