//! The exchange between stages that share parameters, once all backwards have run. The numbers are
//! those of the drawing in `executor`.

use std::collections::BTreeMap;

use futures::future::{try_join, try_join_all};
use stovepipe_schedule::Stage;
use stovepipe_transport::{Direction, Tag, Transport};

use crate::compute::StageCompute;
use crate::error::{StepError, StepPhase};
use crate::in_flight::{ArrivalHook, hooked};
use crate::job::Job;
use crate::stages::RankStages;

/// (3.6) Lets stages give each other what they share. Values between stages of one rank are handed
/// over, those of several go from rank to rank; other ranks have nothing to do with them.
pub(crate) async fn share<C, T>(
    stages: &mut RankStages<C>,
    job: &Job<'_, C::Input>,
    transport: &T,
    arrival_hook: Option<&ArrivalHook<C::Value>>,
) -> Result<(), StepError>
where
    C: StageCompute,
    T: Transport<C::Value> + ?Sized,
{
    let given =
        stages.call_each(StepPhase::Share, |stage, compute| Ok((stage, compute.share()?)))?;
    let rank_of = |stage: Stage| job.program.rank_of(stage);
    let tag = |from: Stage, to: Stage| Tag {
        step: job.step,
        micro_batch: 0,
        from_stage: from.index() as u32,
        to_stage: to.index() as u32,
        direction: Direction::Shared,
    };
    let mut taken: BTreeMap<Stage, BTreeMap<Stage, C::Value>> = BTreeMap::new();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for (from, values) in given {
        taken.entry(from).or_default();
        for (to, value) in values {
            if rank_of(to) == stages.rank {
                taken.entry(to).or_default().insert(from, value);
                continue;
            }
            sends.push(transport.send(rank_of(to).index(), tag(from, to), value));
            let receive = transport.recv(rank_of(to).index(), tag(to, from));
            receives.push(async move { receive.await.map(|value| (from, to, value)) });
        }
    }
    let exchanged = try_join(try_join_all(sends), try_join_all(receives)).await;
    let (_, received) = exchanged.map_err(|source| stages.transport_error(source))?;
    for (own, other, value) in received {
        let value = hooked(arrival_hook, value, (stages.rank, own, None))?;
        taken.entry(own).or_default().insert(other, value);
    }
    let take = |stage, compute: &mut C| {
        compute.take_shared(taken.remove(&stage).into_iter().flatten().collect())
    };
    stages.call_each(StepPhase::Share, take).map(drop)
}
