//! Gradients of tied parameters: the sums over all uses, the same on every rank.

use std::collections::BTreeMap;

use crate::model::ties::Tie;
use crate::stage::report::Report;

/// Adds the gradients of all uses of each tied parameter, in the order of the layers.
///
/// A parameter has no sum where no use has a gradient. The sums are computed on the host, so
/// that every rank finds the same bits.
pub(crate) fn tied_sums(ties: &[Tie], reports: &[Report]) -> Vec<Option<Vec<f32>>> {
    let mut gradients: BTreeMap<u64, &Vec<f32>> = BTreeMap::new();
    for report in reports {
        gradients.extend(report.tied.iter().map(|(number, gradient)| (*number, gradient)));
    }
    let mut number = 0;
    let mut sum_of_uses = |tie: &Tie| {
        let uses = number..number + tie.len() as u64;
        number = uses.end;
        let all = gradients.range(uses).map(|(_, gradient)| (*gradient).clone());
        all.reduce(|sum, more| sum.iter().zip(more).map(|(sum, more)| sum + more).collect())
    };
    ties.iter().map(&mut sum_of_uses).collect()
}

/// Returns the sum of the squares of these gradients.
///
/// Every rank computes it by itself, on whatever threads it has. All find the same bits because
/// it is plain arithmetic in one order.
pub(crate) fn tied_squared_norm(sums: &[Option<Vec<f32>>]) -> f64 {
    let values = sums.iter().flatten().flatten();
    values.map(|&value| f64::from(value) * f64::from(value)).sum()
}
