//! Advice where nothing fits.

use super::fit::fit;
use super::request::Request;
use crate::report::Rejected;

/// The bytes that every rank needs more to run the nearest configuration.
pub(super) fn bytes_that_help(request: &Request<'_>, rejected: &[Rejected]) -> Option<u64> {
    // What is missing is told of the best cut, but the next one is cut for the larger memory.
    const ATTEMPTS: usize = 8;
    let Rejected { configuration, missing, .. } = rejected.first()?;
    let mut more = (*missing)?;
    for _ in 0..ATTEMPTS {
        let cluster = request.cluster.clone().with_more_memory(more);
        match fit(&Request { cluster: &cluster, ..request.clone() }, configuration) {
            Ok(_) => return Some(more),
            Err(refusal) => more = more.saturating_add(refusal.missing?),
        }
    }
    None
}

/// A larger number of ranks like the last one on which something can run: not always the smallest.
pub(super) fn ranks_that_help(request: &Request<'_>) -> Option<usize> {
    request.cluster.memory.as_ref()?;
    let fits = |ranks: usize| {
        let cluster = request.cluster.clone().with_ranks(ranks);
        let ranks = Some(vec![ranks]);
        let larger = Request { cluster: &cluster, ranks, ..request.clone() };
        larger.configurations().iter().any(|c| matches!(fit(&larger, c), Ok(Some(_))))
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
