//! Reading many sums from a device at once, so that it is waited for once.

use std::ops::Range;

use burn::tensor::{Tensor, Transaction};

/// Sums that will be read from the device together.
#[derive(Default)]
pub(crate) struct Reading {
    transaction: Transaction,
    registered: usize,
}

/// The places of sums in what will be read.
pub(crate) type Places = Range<usize>;

impl Reading {
    /// Adds sums, each in pieces. Returns the places of the pieces.
    pub(crate) fn add(&mut self, pieces: impl IntoIterator<Item = Tensor<1>>) -> Places {
        let start = self.registered;
        for piece in pieces {
            let piece = if piece.device().is_autodiff() { piece.inner() } else { piece };
            self.transaction = std::mem::take(&mut self.transaction).register(piece);
            self.registered += 1;
        }
        start..self.registered
    }

    /// Reads all of them, and adds up the elements of each in 64 bits.
    ///
    /// Fails with the device's words.
    pub(crate) fn read(self) -> Result<Sums, String> {
        let read = match self.registered {
            0 => Vec::new(),
            _ => self.transaction.try_execute().map_err(|error| error.to_string())?,
        };
        Ok(Sums(read.iter().map(|data| data.iter::<f64>().sum()).collect()))
    }
}

/// The sums that were read.
pub(crate) struct Sums(Vec<f64>);

impl Sums {
    /// Adds up the pieces at these places.
    pub(crate) fn at(&self, places: &Places) -> f64 {
        self.0[places.clone()].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::*;

    #[test]
    fn sums_of_any_type_come_back_in_their_places() {
        let device = Device::flex();
        let numbers = |numbers: &[f32]| Tensor::<1>::from_data(numbers, &device);
        let mut reading = Reading::default();
        let first = reading.add([numbers(&[1.0, 2.0]), numbers(&[4.0])]);
        let none = reading.add([]);
        let wide = numbers(&[0.5]).cast(FloatDType::F64);
        let taped = Tensor::from_inner(numbers(&[8.0])).require_grad();
        let second = reading.add([wide, taped]);
        let sums = reading.read().expect("a device that works");
        assert_eq!([first, none, second].map(|places| sums.at(&places)), [7.0, 0.0, 8.5]);
        assert!(Reading::default().read().is_ok());
    }
}
