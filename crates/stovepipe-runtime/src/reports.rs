//! The reports of a rank's stages as the bytes of one gather, and back.

use stovepipe_schedule::{Plan, Rank};

use crate::error::StepError;

/// Each report after its length.
pub(crate) fn encode(reports: &[Vec<u8>]) -> Vec<u8> {
    let parts = reports
        .iter()
        .flat_map(|r| (r.len() as u64).to_le_bytes().into_iter().chain(r.iter().copied()));
    parts.collect()
}

/// Sorts by stage what the ranks gathered.
pub(crate) fn by_stage(plan: &Plan, gathered: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, StepError> {
    let mut reports = vec![Vec::new(); plan.stages()];
    for (rank, bytes) in gathered.iter().enumerate() {
        let decoded = decode(bytes, plan.stages_of(rank).len())
            .ok_or(StepError::Reports { rank: Rank::new(rank) })?;
        for (stage, report) in plan.stages_of(rank).iter().copied().zip(decoded) {
            reports[stage.index()] = report;
        }
    }
    Ok(reports)
}

fn decode(mut bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let reports = (0..count)
        .map(|_| {
            let (length, rest) = bytes.split_first_chunk::<8>()?;
            let (report, rest) =
                rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            bytes = rest;
            Some(report.to_vec())
        })
        .collect::<Option<Vec<_>>>()?;
    bytes.is_empty().then_some(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_round_trip_and_nonsense_is_refused() {
        let reports = vec![vec![1, 2, 3], vec![], vec![9]];
        let bytes = encode(&reports);
        assert_eq!(decode(&bytes, 3), Some(reports));
        assert_eq!(decode(&bytes, 2), None);
        assert_eq!(decode(&bytes, 4), None);
        assert_eq!(decode(&[255; 8], 1), None);
    }
}
