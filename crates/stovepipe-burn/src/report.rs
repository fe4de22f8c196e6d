//! What stages tell each other at the end of a step: losses, weights, norms. Added in the order of stages,
//! layers and micro-batches, never as sums of a stage, so that cutting elsewhere changes no bit.

use crate::StageError;

/// What one stage reports.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Report {
    /// The sum of the squared gradients of each layer, where a norm is wanted.
    pub(crate) squared_norms: Vec<f64>,
    /// On the last stage, sum and weight of the loss of each micro-batch.
    pub(crate) losses: Vec<(f64, f64)>,
}

impl Report {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let losses = self.losses.iter().flat_map(|&(sum, weight)| [sum, weight]);
        let numbers = self.squared_norms.iter().copied().chain(losses).flat_map(f64::to_le_bytes);
        (self.squared_norms.len() as u64).to_le_bytes().into_iter().chain(numbers).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (count, numbers) = words.split_first()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (norms, losses) = numbers.split_at_checked(count)?;
        let (losses, odd) = losses.as_chunks::<2>();
        let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
        (rest.is_empty() && odd.is_empty()).then(|| Self {
            squared_norms: norms.iter().map(number).collect(),
            losses: losses.iter().map(|[sum, weight]| (number(sum), number(weight))).collect(),
        })
    }

    /// Those of all stages, in order.
    pub(crate) fn decode_all(reports: &[Vec<u8>]) -> Result<Vec<Self>, StageError> {
        let decode = |(stage, bytes): (usize, &Vec<u8>)| {
            Self::decode(bytes).ok_or(StageError::Report { stage })
        };
        reports.iter().enumerate().map(decode).collect()
    }
}

/// Sum and weight of the loss of the whole mini-batch.
pub(crate) fn mean_of(reports: &[Report]) -> (f64, f64) {
    let losses = reports.iter().flat_map(|report| &report.losses);
    losses.fold((0.0, 0.0), |(sum, weight), (s, w)| (sum + s, weight + w))
}

/// The norm of the mean gradient over all stages, if layers reported theirs.
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
        let first = Report { squared_norms: vec![9.0, 7.0], losses: Vec::new() };
        let last = Report { squared_norms: vec![9.0], losses: vec![(3.0, 2.0), (1.0, 0.5)] };
        let sent = [first.encode(), last.encode()];
        let read = Report::decode_all(&sent).expect("readable");
        assert_eq!(read, [first, last]);
        assert_eq!((mean_of(&read), norm_of(&read, 2.0)), ((4.0, 2.5), Some(2.5)));
        assert_eq!(norm_of(&[Report::default()], 1.0), None);
    }

    #[test]
    fn what_cannot_be_read_names_its_stage() {
        let good = Report::default().encode();
        for bad in [vec![], vec![1; 7], 9u64.to_le_bytes().to_vec(), vec![0; 16]] {
            let found = Report::decode_all(&[good.clone(), bad]);
            assert_eq!(found, Err(StageError::Report { stage: 1 }));
        }
    }
}
