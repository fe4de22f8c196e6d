//! Keyed randomness: numbers that are a pure function of seed, step, layer, draw, sample and
//! element.
//!
//! So they are the same when a forward is run again, and for every number of stages and
//! micro-batches.
//!
//! Each sample has a key of 64 bits. An element's 32 bits are its place in the sample, mixed
//! with one half of the key, and mixed once more with the other half. The mixing function is
//! Chris Wellons' lowbias32.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, IntDType, Tensor, TensorData};

use crate::hash::{scramble, stable_hash};

/// The bits of a uniform number, as many as an `f32` holds exactly.
const BITS: u32 = 24;

/// One draw of random numbers in one forward.
pub(crate) struct Draw {
    key: u64,
}

impl Draw {
    /// Creates the draw with this number, from 0, in a forward of `layer` in this step.
    pub(crate) fn new(seed: u64, step: u64, layer: &str, number: u32) -> Self {
        let key = stable_hash(seed.wrapping_add(1), layer);
        let key = mix64(key ^ mix64(step));
        Self { key: mix64(key ^ mix64(u64::from(number) + 1)) }
    }

    /// Draws for each element `scale` with this probability, else zero.
    ///
    /// The elements of the samples follow each other.
    ///
    /// # Panics
    ///
    /// If the number of elements isn't a multiple of the number of samples.
    pub(crate) fn mask<const D: usize>(
        &self,
        shape: [usize; D],
        samples: &Range<usize>,
        device: &Device,
        probability: f64,
        scale: f64,
    ) -> Tensor<D> {
        let per_sample = elements_per_sample(&shape, samples);
        let limit = (probability * f64::from(1u32 << BITS)).round() as i32;
        if draws_on_host(device) {
            let scale = scale as f32;
            let numbers =
                self.on_host(samples, per_sample, |n| if n < limit { scale } else { 0.0 });
            return Tensor::from_data(TensorData::new(numbers, shape), device);
        }
        let numbers = self.on_device(samples, per_sample, device).reshape(shape);
        numbers.lower_scalar(limit).float() * scale
    }

    /// Draws for each element a number of at least 0 and below 1.
    ///
    /// The elements of the samples follow each other.
    ///
    /// # Panics
    ///
    /// If the number of elements isn't a multiple of the number of samples.
    pub(crate) fn uniform<const D: usize>(
        &self,
        shape: [usize; D],
        samples: &Range<usize>,
        device: &Device,
    ) -> Tensor<D> {
        const UNIT: f32 = 1.0 / (1u32 << BITS) as f32;
        let per_sample = elements_per_sample(&shape, samples);
        if draws_on_host(device) {
            let numbers = self.on_host(samples, per_sample, |n| n as f32 * UNIT);
            return Tensor::from_data(TensorData::new(numbers, shape), device);
        }
        self.on_device(samples, per_sample, device).reshape(shape).float() * UNIT
    }

    fn keys(&self, sample: usize) -> (u32, u32) {
        let key = mix64(self.key ^ mix64(sample as u64 + 1));
        (key as u32, (key >> 32) as u32)
    }

    /// Draws whole numbers from 0 to 2^24 − 1 by a loop, and applies `make` to each.
    fn on_host<T>(
        &self,
        samples: &Range<usize>,
        per_sample: usize,
        make: impl Fn(i32) -> T,
    ) -> Vec<T> {
        let mut numbers = Vec::with_capacity(samples.len() * per_sample);
        for sample in samples.clone() {
            let (first, second) = self.keys(sample);
            // The numbers of a sample repeat after 2^32 elements.
            let number = |place: u32| (mix32(mix32(place ^ first) ^ second) >> (32 - BITS)) as i32;
            numbers.extend((0..per_sample).map(|place| make(number(place as u32))));
        }
        numbers
    }

    /// Draws the same numbers by tensor operations, which a device runs as one kernel.
    ///
    /// Shape `[samples, elements per sample]`.
    fn on_device(
        &self,
        samples: &Range<usize>,
        per_sample: usize,
        device: &Device,
    ) -> Tensor<2, Int> {
        let column = |half: fn((u32, u32)) -> u32| {
            let keys: Vec<i32> = samples.clone().map(|s| half(self.keys(s)) as i32).collect();
            let data = TensorData::new(keys, [samples.len(), 1]);
            let column = Tensor::<2, Int>::from_data(data, (device, DType::I32));
            column.expand([samples.len(), per_sample])
        };
        let place = Tensor::<1, Int>::arange(0..per_sample as i64, (device, DType::I32));
        let place = place.reshape([1, per_sample]).expand([samples.len(), per_sample]);
        let once = mix_tensor(place.bitwise_xor(column(|(first, _)| first)));
        let twice = mix_tensor(once.bitwise_xor(column(|(_, second)| second)));
        shift(twice, 32 - BITS)
    }
}

/// Says whether a loop on the host draws the numbers.
///
/// On Flex the loop is faster than tensor operations. Devices that compute with wider whole
/// numbers, such as LibTorch's, can't do all of these operations on 32 bits.
fn draws_on_host(device: &Device) -> bool {
    *device == Device::flex() || device.settings().int_dtype != IntDType::I32
}

/// Returns the number of elements that each sample has in a tensor of this shape.
fn elements_per_sample(shape: &[usize], samples: &Range<usize>) -> usize {
    let elements: usize = shape.iter().product();
    assert!(
        !samples.is_empty() && elements.is_multiple_of(samples.len()),
        "a tensor of shape {shape:?} doesn't hold the same number of elements for each of {} \
         samples: random numbers need tensors whose first axis is the batch axis",
        samples.len()
    );
    elements / samples.len()
}

/// Mixes as [`scramble`] does, except that zero doesn't stay zero.
fn mix64(key: u64) -> u64 {
    scramble(key.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// Mixes by lowbias32.
fn mix32(number: u32) -> u32 {
    let number = (number ^ (number >> 16)).wrapping_mul(0x7feb_352d);
    let number = (number ^ (number >> 15)).wrapping_mul(0x846c_a68b);
    number ^ (number >> 16)
}

/// Mixes as [`mix32`] does, on tensors of 32-bit integers, whose products wrap.
fn mix_tensor(numbers: Tensor<2, Int>) -> Tensor<2, Int> {
    let xor_shifted = |numbers: Tensor<2, Int>, bits| {
        let shifted = shift(numbers.clone(), bits);
        numbers.bitwise_xor(shifted)
    };
    let numbers = xor_shifted(numbers, 16).mul_scalar(0x7feb_352du32 as i32);
    let numbers = xor_shifted(numbers, 15).mul_scalar(0x846c_a68bu32 as i32);
    xor_shifted(numbers, 16)
}

/// Shifts to the right as if the numbers had no sign.
fn shift(numbers: Tensor<2, Int>, bits: u32) -> Tensor<2, Int> {
    numbers.bitwise_right_shift_scalar(bits as i32).bitwise_and_scalar((u32::MAX >> bits) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(number: u32) -> Draw {
        Draw::new(3, 5, "blocks.1", number)
    }

    #[test]
    fn tensors_and_loops_draw_the_same_numbers() {
        let on_device = draw(0).on_device(&(3..7), 1000, &Device::flex());
        let on_device: Vec<i32> = on_device.into_data().iter::<i32>().collect();
        assert_eq!(on_device, draw(0).on_host(&(3..7), 1000, |n| n));
    }

    #[test]
    fn a_samples_numbers_are_its_own() {
        let all = draw(0).on_host(&(0..8), 10, |n| n);
        assert_eq!(all[30..60], draw(0).on_host(&(3..6), 10, |n| n));
    }

    #[test]
    fn numbers_are_evenly_spread() {
        // 2^20 numbers in 256 bins: chi squared of 255 degrees of freedom, within 5
        // deviations.
        let numbers = draw(0).on_host(&(0..64), 1 << 14, |n| n);
        let mut bins = [0f64; 256];
        for number in &numbers {
            bins[*number as usize >> 16] += 1.0;
        }
        let expected = numbers.len() as f64 / 256.0;
        let chi: f64 = bins.iter().map(|n| (n - expected).powi(2) / expected).sum();
        assert!((chi - 255.0).abs() < 5.0 * (2.0f64 * 255.0).sqrt(), "{chi}");
        let mean = numbers.iter().map(|n| f64::from(*n)).sum::<f64>() / numbers.len() as f64;
        let half = f64::from(1 << (BITS - 1));
        // The mean of 2^20 uniform numbers has a deviation of a 1770th of half their range.
        assert!((mean - half).abs() < 5.0 * half / 1770.0, "{mean}");
        let variance = numbers.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum::<f64>();
        let ratio = variance / numbers.len() as f64 / ((2.0 * half).powi(2) / 12.0);
        assert!((ratio - 1.0).abs() < 0.005, "{ratio}");
    }

    #[test]
    fn other_keys_draw_independent_numbers() {
        const COUNT: usize = 1 << 16;
        let base = Draw::new(3, 5, "blocks.1", 0).on_host(&(0..1), COUNT, |n| n);
        let others = [
            Draw::new(4, 5, "blocks.1", 0).on_host(&(0..1), COUNT, |n| n),
            Draw::new(3, 6, "blocks.1", 0).on_host(&(0..1), COUNT, |n| n),
            Draw::new(3, 5, "blocks.2", 0).on_host(&(0..1), COUNT, |n| n),
            Draw::new(3, 5, "blocks.1", 1).on_host(&(0..1), COUNT, |n| n),
            Draw::new(3, 5, "blocks.1", 0).on_host(&(1..2), COUNT, |n| n),
        ];
        let centred = |n: &i32| f64::from(*n) - f64::from(1 << (BITS - 1));
        let product = |a: &[i32], b: &[i32]| {
            a.iter().zip(b).map(|(a, b)| centred(a) * centred(b)).sum::<f64>()
        };
        let correlation =
            |a: &[i32], b: &[i32]| product(a, b) / (product(a, a) * product(b, b)).sqrt();
        // The correlation of 65,536 independent pairs has a deviation of a 256th.
        let limit = 5.0 / (COUNT as f64).sqrt();
        for (index, other) in others.iter().enumerate() {
            let found = correlation(&base, other);
            assert!(found.abs() < limit, "{index}: {found}");
        }
        // Nor does a number depend on those before it, in its own sample or in the next one.
        for lag in 1..64 {
            assert!(correlation(&base[..COUNT - lag], &base[lag..]).abs() < limit, "{lag}");
            assert!(correlation(&base[..COUNT - lag], &others[4][lag..]).abs() < limit, "{lag}");
        }
    }

    #[test]
    fn masks_keep_as_many_as_they_should() {
        let device = Device::flex();
        let mask = draw(0).mask([64, 1024], &(0..64), &device, 0.9, 2.0);
        let kept = mask.clone().sum().into_scalar::<f32>() / 2.0 / 65_536.0;
        // The limit is five deviations of the mean of 65,536 elements.
        assert!((kept - 0.9).abs() < 5.0 * (0.09f32 / 65_536.0).sqrt(), "{kept}");
        assert_eq!(mask.max().into_scalar::<f32>(), 2.0);
        let none = draw(0).mask([4, 4], &(0..4), &device, 1.0, 1.0);
        assert_eq!(none.sum().into_scalar::<f32>(), 16.0);
        let uniform = draw(0).uniform([64, 1024], &(0..64), &device);
        assert!(uniform.clone().max().into_scalar::<f32>() < 1.0);
        assert!(uniform.min().into_scalar::<f32>() >= 0.0);
    }

    #[test]
    #[should_panic(expected = "whose first axis is the batch axis")]
    fn shapes_must_hold_whole_samples() {
        draw(0).uniform([3, 5], &(0..2), &Device::flex());
    }
}
