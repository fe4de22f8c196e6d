//! Advice where nothing fits.

use std::sync::Arc;

use rayon::prelude::*;
use stovepipe_schedule::Schedule;

use super::fit::{Fitted, check_plan, fit};
use super::refusal::Refusal;
use super::request::Request;
use super::sized::SizedLayers;
use crate::report::{Configuration, Rejected};

/// Cuts and simulates a configuration.
fn tried(request: &Request<'_>, configuration: &Configuration) -> Result<Fitted, Refusal> {
    let plan = configuration.schedule.plan(configuration.shape())?;
    check_plan(&plan)?;
    let sized = SizedLayers::new(request, configuration.micro_batches);
    // Whatever it takes: the question is whether it fits.
    fit(request, configuration, &plan, &sized, f64::INFINITY)
}

/// The bytes that every rank needs more to run the nearest configuration.
pub(super) fn bytes_that_help(request: &Request<'_>, rejected: &[Rejected]) -> Option<u64> {
    // What is missing is told of the best cut, but the next one is cut for the larger memory.
    const ATTEMPTS: usize = 8;
    let Rejected { configuration, missing, .. } = rejected.first()?;
    let mut more = (*missing)?;
    for _ in 0..ATTEMPTS {
        let cluster = request.cluster.clone().with_more_memory(more);
        match tried(&Request { cluster: &cluster, ..request.clone() }, configuration) {
            Ok(_) => return Some(more),
            Err(refusal) => more = more.saturating_add(refusal.missing?),
        }
    }
    None
}

/// A larger number of ranks like the last one on which something can run: not always the smallest.
pub(super) fn ranks_that_help(
    request: &Request<'_>,
    schedules: &[Arc<dyn Schedule>],
) -> Option<usize> {
    if !request.cluster.limits_memory() {
        return None;
    }
    let fits = |ranks: usize| {
        let cluster = request.cluster.clone().with_ranks(ranks);
        let ranks = Some(vec![ranks]);
        let larger = Request { cluster: &cluster, ranks, ..request.clone() };
        let groups = larger.groups(schedules).unwrap_or_default();
        groups.par_iter().any(|group| {
            larger.policies.iter().any(|policy| tried(&larger, &group.with(policy)).is_ok())
        })
    };
    let most = request.profile.layers().len();
    let (mut too_few, mut ranks) = (request.cluster.ranks, request.cluster.ranks);
    loop {
        if ranks >= most {
            return None;
        }
        ranks = (2 * ranks).min(most);
        if fits(ranks) {
            break;
        }
        too_few = ranks;
    }
    while ranks - too_few > 1 {
        let middle = usize::midpoint(too_few, ranks);
        if fits(middle) {
            ranks = middle;
        } else {
            too_few = middle;
        }
    }
    Some(ranks)
}
