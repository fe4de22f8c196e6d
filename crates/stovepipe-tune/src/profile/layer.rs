//! One layer's measurements, and its costs at a size between the measured ones.

use serde::{Deserialize, Serialize};
use stovepipe_schedule::LayerMemory;

use super::counted;
use super::time::Time;

/// A layer at one size of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Samples in the micro-batch.
    pub samples: usize,
    /// The forward in training.
    pub forward: Time,
    /// The forward that rebuilds activations for the backward.
    pub recompute: Time,
    /// The backward without recomputation.
    pub backward: Time,
    /// Bytes of the layer's input.
    pub input_bytes: u64,
    /// Bytes of its output.
    pub output_bytes: u64,
    /// The bytes that it holds and needs meanwhile; none where they couldn't be counted.
    ///
    /// Where only what stays could be counted, the peaks are what its forward leaves behind. A
    /// [`Profile`](crate::Profile) takes input, output and gradients from the fields of their own.
    #[serde(default, with = "counted")]
    pub memory: Option<LayerMemory>,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerProfile {
    /// Its name in the model.
    pub name: String,
    /// Bytes of its parameters, and of copies in another type that it computes with.
    pub parameter_bytes: u64,
    /// Bytes of their gradients.
    pub gradient_bytes: u64,
    /// Bytes of the optimizer's state for them.
    pub optimizer_bytes: u64,
    /// The most bytes that the optimizer's step needs beyond all these; zero where that couldn't be
    /// measured.
    pub update_bytes: u64,
    /// The part of them that stays until all layers have been updated: the copies of an atomic
    /// update.
    pub staged_bytes: u64,
    /// The optimizer's step on them.
    pub update: Time,
    /// One for each size, ascending.
    pub measurements: Vec<Measurement>,
}

/// A layer's costs at a size between the measured ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerCost {
    pub(crate) forward: f64,
    pub(crate) recompute: f64,
    pub(crate) backward: f64,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) memory: Option<LayerMemory>,
}

impl LayerProfile {
    /// Bytes that it needs all the time.
    pub(crate) fn lasting_bytes(&self) -> u64 {
        self.parameter_bytes.saturating_add(self.optimizer_bytes)
    }

    /// The same with gradients, which come with the first backward.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        self.lasting_bytes().saturating_add(self.gradient_bytes)
    }

    /// Its costs for `samples` samples, if that is within the measured sizes.
    pub(super) fn at(&self, samples: usize) -> Option<LayerCost> {
        let above = self.measurements.iter().position(|m| m.samples >= samples)?;
        let high = &self.measurements[above];
        let low = if high.samples == samples {
            high
        } else {
            &self.measurements[above.checked_sub(1)?]
        };
        let part = if high.samples == low.samples {
            0.0
        } else {
            (samples - low.samples) as f64 / (high.samples - low.samples) as f64
        };
        let time = |which: fn(&Measurement) -> Time| {
            let (low, high) = (which(low).median, which(high).median);
            low + part * (high - low)
        };
        let bytes = |low: u64, high: u64| {
            // Up, so that nothing is promised that doesn't fit.
            (low as f64 + part * (high as f64 - low as f64)).ceil() as u64
        };
        Some(LayerCost {
            forward: time(|m| m.forward),
            recompute: time(|m| m.recompute),
            backward: time(|m| m.backward),
            input_bytes: bytes(low.input_bytes, high.input_bytes),
            output_bytes: bytes(low.output_bytes, high.output_bytes),
            memory: low.memory.zip(high.memory).map(|(low, high)| LayerMemory {
                activations: bytes(low.activations, high.activations),
                input: bytes(low.input, high.input),
                output: bytes(low.output, high.output),
                gradients: bytes(low.gradients, high.gradients),
                forward: bytes(low.forward, high.forward),
                untaped: bytes(low.untaped, high.untaped),
                backward: bytes(low.backward, high.backward),
            }),
        })
    }

    /// Takes input, output and gradients into its counted bytes.
    pub(super) fn complete(&mut self) {
        for measurement in &mut self.measurements {
            let (input, output) = (measurement.input_bytes, measurement.output_bytes);
            if let Some(memory) = &mut measurement.memory {
                let gradients = self.gradient_bytes;
                *memory = LayerMemory { input, output, gradients, ..*memory };
            }
        }
    }
}
