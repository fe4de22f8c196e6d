//! The report that each stage gives all others at the end of a step: losses, weights, norms.
//!
//! Numbers are added in the order of stages, layers and micro-batches, never as sums of a
//! stage, so that cutting elsewhere changes no bit.

use std::collections::BTreeMap;

use crate::error::stage::StageError;
use crate::model::ties::Tie;

/// The report of one stage.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Report {
    /// The sum of the squared gradients of each layer, where a norm is wanted.
    pub(crate) squared_norms: Vec<f64>,
    /// The losses that layers add, layer by layer.
    pub(crate) added: Vec<f64>,
    /// The sum and the weight of the loss of each micro-batch, on the last stage.
    pub(crate) losses: Vec<(f64, f64)>,
    /// The same of each metric, one metric after the other, on the last stage.
    pub(crate) metrics: Vec<(f64, f64)>,
    /// The paths of the parameters that are to be trained and have no gradient.
    pub(crate) without_gradient: Vec<String>,
}

impl Report {
    /// Writes the report as bytes, all numbers little-endian.
    ///
    /// The order:
    ///
    /// - the counts of the four lists of floats, as `u64`;
    /// - squared norms and added losses, then the pairs of losses and metrics, as `f64`;
    /// - the number of paths without a gradient and, for each, its length and its UTF-8.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { squared_norms, added, losses, metrics, without_gradient } = self;
        let counts = [squared_norms.len(), added.len(), losses.len(), metrics.len()];
        let pairs = losses.iter().chain(metrics).flat_map(|&(sum, weight)| [sum, weight]);
        let numbers = squared_norms.iter().chain(added).copied().chain(pairs);
        let counts = counts.into_iter().flat_map(|count| (count as u64).to_le_bytes());
        let mut bytes: Vec<u8> = counts.chain(numbers.flat_map(f64::to_le_bytes)).collect();
        bytes.extend((without_gradient.len() as u64).to_le_bytes());
        for path in without_gradient {
            bytes.extend((path.len() as u64).to_le_bytes());
            bytes.extend(path.as_bytes());
        }
        bytes
    }

    /// Reads bytes of [`encode`](Self::encode); none if they are anything else.
    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut words = |count: usize| {
            let (taken, rest) = bytes.split_at_checked(count.checked_mul(8)?)?;
            bytes = rest;
            Some(taken.as_chunks::<8>().0)
        };
        let counts = words(4)?.iter().map(|count| u64::from_le_bytes(*count) as usize);
        let [norms, added, losses, metrics] = counts.collect::<Vec<_>>().try_into().ok()?;
        let mut numbers = |count: usize| -> Option<Vec<f64>> {
            Some(words(count)?.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
        };
        let (squared_norms, added) = (numbers(norms)?, numbers(added)?);
        let mut pairs = |count: usize| -> Option<Vec<(f64, f64)>> {
            let numbers = numbers(count.checked_mul(2)?)?;
            Some(numbers.as_chunks::<2>().0.iter().map(|&[sum, weight]| (sum, weight)).collect())
        };
        let (losses, metrics) = (pairs(losses)?, pairs(metrics)?);
        let mut without_gradient = Vec::new();
        let (count, mut rest) = bytes.split_first_chunk::<8>()?;
        for _ in 0..u64::from_le_bytes(*count) {
            let (length, path) = rest.split_first_chunk::<8>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (path, after) = path.split_at_checked(length)?;
            without_gradient.push(str::from_utf8(path).ok()?.to_owned());
            rest = after;
        }
        let report = Self { squared_norms, added, losses, metrics, without_gradient };
        rest.is_empty().then_some(report)
    }

    /// Reads the reports of all stages, in their order.
    pub(crate) fn decode_all(reports: &[Vec<u8>]) -> Result<Vec<Self>, StageError> {
        let decode = |(stage, bytes): (usize, &Vec<u8>)| {
            Self::decode(bytes).ok_or(StageError::Report { stage })
        };
        reports.iter().enumerate().map(decode).collect()
    }
}

/// Returns the sum and the weight of the loss of the whole mini-batch.
pub(crate) fn sum_and_weight_of(reports: &[Report]) -> (f64, f64) {
    let losses = reports.iter().flat_map(|report| &report.losses);
    losses.fold((0.0, 0.0), |(sum, weight), (s, w)| (sum + s, weight + w))
}

/// Divides a sum by its weight; zero where nothing counts.
pub(crate) fn mean(sum: f64, weight: f64) -> f64 {
    if sum == 0.0 && weight == 0.0 { 0.0 } else { sum / weight }
}

/// Returns the sum of what layers added to the loss.
pub(crate) fn added_by_layers(reports: &[Report]) -> f64 {
    reports.iter().flat_map(|report| &report.added).sum()
}

/// Returns the means of the metrics of these names over the whole mini-batch.
pub(crate) fn metrics_of(reports: &[Report], names: &[String]) -> BTreeMap<String, f64> {
    let Some(last) = reports.last().filter(|last| !last.losses.is_empty()) else {
        return BTreeMap::new();
    };
    let metrics = names.iter().zip(last.metrics.chunks(last.losses.len()));
    let mean_of_pairs = |pairs: &[(f64, f64)]| {
        let (sum, weight) =
            pairs.iter().fold((0.0, 0.0), |(sum, weight), (s, w)| (sum + s, weight + w));
        mean(sum, weight)
    };
    metrics.map(|(name, pairs)| (name.clone(), mean_of_pairs(pairs))).collect()
}

/// Returns the paths of the parameters that are to be trained and got no gradient on any stage,
/// in the order of the model.
///
/// A tied parameter goes by the path of its first use. It has a gradient if any use has.
pub(crate) fn without_gradient(reports: &[Report], ties: &[Tie]) -> Vec<String> {
    let all: Vec<&String> = reports.iter().flat_map(|report| &report.without_gradient).collect();
    let is_whole =
        |path: &&&String| match ties.iter().find(|tie| tie.iter().any(|t| t.path == ***path)) {
            Some(tie) => tie[0].path == ***path && tie.iter().all(|tied| all.contains(&&tied.path)),
            None => true,
        };
    all.iter().filter(is_whole).map(|path| (*path).clone()).collect()
}

/// Returns the norm of the gradient over all stages, divided by `weight`; none if no layer
/// reported its own.
///
/// A tied parameter counts once, in the layer of its first use.
pub(crate) fn norm_of(reports: &[Report], weight: f64) -> Option<f64> {
    let mut squares = reports.iter().flat_map(|report| &report.squared_norms).peekable();
    squares.peek()?;
    Some(squares.sum::<f64>().sqrt() / weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_read_back_and_add_up() {
        let first = Report { squared_norms: vec![9.0, 7.0], added: vec![0.5], ..Report::default() };
        let last = Report {
            squared_norms: vec![9.0],
            added: vec![0.25, 0.25],
            losses: vec![(3.0, 2.0), (1.0, 0.5)],
            metrics: vec![(1.0, 2.0), (0.0, 2.0), (6.0, 1.0), (0.0, 1.0)],
            without_gradient: vec!["b.weight".to_owned(), "ä".to_owned()],
        };
        let sent = [first.encode(), last.encode()];
        let read = Report::decode_all(&sent).expect("readable");
        assert_eq!(read, [first, last]);
        assert_eq!((sum_and_weight_of(&read), norm_of(&read, 2.0)), ((4.0, 2.5), Some(2.5)));
        assert_eq!(norm_of(&[Report::default()], 1.0), None);
        assert_eq!(added_by_layers(&read), 1.0);
        let metrics = metrics_of(&read, &["a".to_owned(), "b".to_owned()]);
        assert_eq!(metrics.into_values().collect::<Vec<_>>(), [0.25, 3.0]);
    }

    #[test]
    fn what_cannot_be_read_names_its_stage() {
        let good = Report::default().encode();
        for bad in [
            vec![],
            vec![1; 7],
            [9u64.to_le_bytes(); 4].concat(),
            vec![0; 48],
            vec![0; 41],
            vec![0; 33],
        ] {
            let found = Report::decode_all(&[good.clone(), bad]);
            assert_eq!(found, Err(StageError::Report { stage: 1 }));
        }
    }
}
