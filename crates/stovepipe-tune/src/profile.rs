//! What each layer takes and needs, at several sizes of a micro-batch, and the file it is kept in.
//!
//! Times are in seconds and measured at the sizes that will be run: a large batch's time divided by
//! the number of micro-batches hides what every action costs however small it is. Between two measured
//! sizes they are taken from the straight line, and beyond them not at all.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use stovepipe_checkpoint::LayerActivations;
use stovepipe_partition::Costs;
use stovepipe_schedule::{LayerMemory, StageMemory};

use crate::TuneError;

/// A measured time in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// The median over several runs.
    pub median: f64,
    /// The distance between the lower and the upper quartile.
    pub spread: f64,
}

impl Time {
    /// Of several runs, in seconds; zero of none.
    #[must_use]
    pub fn of(mut runs: Vec<f64>) -> Self {
        runs.sort_by(f64::total_cmp);
        let Some(last) = runs.len().checked_sub(1) else { return Self::default() };
        let at = |quarter: usize| runs[last * quarter / 4];
        Self { median: at(2), spread: at(3) - at(1) }
    }

    /// A time without spread.
    #[must_use]
    pub fn exactly(seconds: f64) -> Self {
        Self { median: seconds, spread: 0.0 }
    }
}

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
    /// What it holds and needs meanwhile; none where that couldn't be measured.
    pub memory: Option<MemoryUse>,
}

/// What a layer holds and needs for one micro-batch, in bytes. Where only what stays could be counted, the last
/// three are what its forward leaves behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// What its backward needs, its input included and its output not.
    pub activation_bytes: u64,
    /// The most while its forward runs beyond what was there, what it leaves behind included.
    pub forward_bytes: u64,
    /// The same of a forward that leaves only its output.
    pub untaped_bytes: u64,
    /// The most while its backward runs beyond what was there, the gradient of its output included.
    pub backward_bytes: u64,
}

impl MemoryUse {
    /// The most while either runs.
    pub(crate) fn working(&self) -> u64 {
        self.forward_bytes.max(self.untaped_bytes).max(self.backward_bytes)
    }
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
    /// The most bytes that the optimizer's step needs beyond all these; zero where that couldn't be measured.
    pub update_bytes: u64,
    /// By how many of them the layer's bytes are more until all layers have been updated: the copies of an
    /// update that is staged.
    pub staged_bytes: u64,
    /// The optimizer's step on them.
    pub update: Time,
    /// One for each size, ascending.
    pub measurements: Vec<Measurement>,
}

/// Every layer of a model, measured on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    version: u32,
    device: String,
    workspace_bytes: u64,
    layers: Vec<LayerProfile>,
}

/// A layer's costs at a size between the measured ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerCost {
    pub(crate) forward: f64,
    pub(crate) recompute: f64,
    pub(crate) backward: f64,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) memory: Option<MemoryUse>,
}

impl Profile {
    /// The version that is written and read.
    pub const VERSION: u32 = 2;

    /// A profile of the layers of a model, in model order, measured on `device`.
    ///
    /// # Errors
    ///
    /// [`TuneError::Profile`] unless there is a layer, all were measured at the same sizes, ascending
    /// and at least 1, and every time is finite and not negative.
    pub fn new(device: impl Into<String>, layers: Vec<LayerProfile>) -> Result<Self, TuneError> {
        let profile =
            Self { version: Self::VERSION, device: device.into(), workspace_bytes: 0, layers };
        profile.check()?;
        Ok(profile)
    }

    /// With the bytes that a rank's threads keep for themselves once they have computed, such as what
    /// matrix products are packed into.
    #[must_use]
    pub fn with_workspace(self, bytes: u64) -> Self {
        Self { workspace_bytes: bytes, ..self }
    }

    /// The bytes that a rank's threads keep for themselves.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.workspace_bytes
    }

    /// Reads a profile.
    ///
    /// # Errors
    ///
    /// [`TuneError::Json`], [`TuneError::Version`], and as [`Profile::new`].
    pub fn from_json(text: &str) -> Result<Self, TuneError> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        #[derive(Deserialize)]
        struct Body {
            device: String,
            workspace_bytes: u64,
            layers: Vec<LayerProfile>,
        }
        let Head { version } = serde_json::from_str(text)?;
        if version != Self::VERSION {
            return Err(TuneError::Version { found: version, known: Self::VERSION });
        }
        let Body { device, workspace_bytes, layers } = serde_json::from_str(text)?;
        Ok(Self::new(device, layers)?.with_workspace(workspace_bytes))
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// [`TuneError::Json`], which a checked profile never causes.
    pub fn to_json(&self) -> Result<String, TuneError> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// What it was measured on.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The layers, in model order.
    #[must_use]
    pub fn layers(&self) -> &[LayerProfile] {
        &self.layers
    }

    /// The sizes of a micro-batch that were measured, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.layers[0].measurements.iter().map(|m| m.samples)
    }

    /// Whether it is known how many bytes every layer keeps.
    #[must_use]
    pub fn knows_memory(&self) -> bool {
        let mut measurements = self.layers.iter().flat_map(|layer| &layer.measurements);
        measurements.all(|m| m.memory.is_some())
    }

    /// The seconds of forward and backward of every layer for `samples` samples, to cut by time.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] unless `samples` is within the measured sizes.
    pub fn times(&self, samples: usize) -> Result<Costs, TuneError> {
        let costs = self.at(samples).ok_or_else(|| self.not_measured(samples))?;
        costs_of(costs.iter().map(|cost| cost.forward + cost.backward))
    }

    /// The bytes of every layer to cut by: parameters, gradients, optimizer state, and what it keeps
    /// from forward to backward for `samples` samples.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] unless `samples` is within the measured sizes and the profile
    /// [knows memory](Self::knows_memory).
    pub fn bytes(&self, samples: usize) -> Result<Costs, TuneError> {
        let costs = self.at(samples).ok_or_else(|| self.not_measured(samples))?;
        let bytes = self.layers.iter().zip(&costs).map(|(layer, cost)| {
            let kept = cost.memory?.activation_bytes;
            Some(layer.fixed_bytes().saturating_add(kept) as f64)
        });
        let bytes: Option<Vec<f64>> = bytes.collect();
        let bytes = bytes.ok_or_else(unknown_bytes)?;
        costs_of(bytes.into_iter())
    }

    /// What each layer costs to keep and to compute again for `samples` samples: what
    /// [`Budget`](stovepipe_checkpoint::Budget) decides by.
    ///
    /// # Errors
    ///
    /// As [`bytes`](Self::bytes).
    pub fn activations(&self, samples: usize) -> Result<Vec<LayerActivations>, TuneError> {
        let costs = self.at(samples).ok_or_else(|| self.not_measured(samples))?;
        let priced = |(layer, cost): (&LayerProfile, &LayerCost)| {
            let memory = layer.memory(cost)?;
            Some(LayerActivations { memory, recompute: cost.recompute })
        };
        let layers = self.layers.iter().zip(&costs);
        layers.map(priced).collect::<Option<_>>().ok_or_else(unknown_bytes)
    }

    /// What a stage of these layers needs for micro-batches of `samples` samples, to be counted by
    /// [`Program::peak_bytes`](stovepipe_schedule::Program::peak_bytes).
    ///
    /// # Errors
    ///
    /// As [`bytes`](Self::bytes), and [`TuneError::Request`] if there are no such layers.
    pub fn stage_memory(
        &self,
        layers: Range<usize>,
        samples: usize,
    ) -> Result<StageMemory, TuneError> {
        let costs = self.at(samples).ok_or_else(|| self.not_measured(samples))?;
        if layers.start > layers.end || layers.end > self.layers.len() {
            let reason = format!("{layers:?} aren't among {}", self.layers.len());
            return Err(TuneError::Request { what: "layers", reason });
        }
        self.stage_of(layers, &costs).ok_or_else(unknown_bytes)
    }

    /// The same from these costs of all layers; nothing if they don't say.
    pub(crate) fn stage_of(
        &self,
        layers: Range<usize>,
        costs: &[LayerCost],
    ) -> Option<StageMemory> {
        let (own, costs) = (&self.layers[layers.clone()], &costs[layers]);
        let memory = own.iter().zip(costs).map(|(layer, cost)| layer.memory(cost));
        let sum = |of: fn(&LayerProfile) -> u64| own.iter().map(of).fold(0, u64::saturating_add);
        Some(StageMemory {
            fixed: sum(LayerProfile::lasting_bytes),
            layers: memory.collect::<Option<_>>()?,
            workspace: self.workspace_bytes,
            staged: sum(|layer| layer.staged_bytes),
            update: own.iter().map(|layer| layer.update_bytes).max().unwrap_or(0),
        })
    }

    fn not_measured(&self, samples: usize) -> TuneError {
        let sizes: Vec<usize> = self.sizes().collect();
        TuneError::Request {
            what: "samples",
            reason: format!("{samples} is outside the measured sizes {sizes:?}: measure it too"),
        }
    }

    /// The costs of every layer for `samples` samples, if that is within the measured sizes.
    pub(crate) fn at(&self, samples: usize) -> Option<Vec<LayerCost>> {
        self.layers.iter().map(|layer| layer.at(samples)).collect()
    }

    fn check(&self) -> Result<(), TuneError> {
        let refuse = |reason: String| Err(TuneError::Profile { reason });
        let Some(first) = self.layers.first() else {
            return refuse("it has no layers".to_owned());
        };
        let sizes: Vec<usize> = first.measurements.iter().map(|m| m.samples).collect();
        if sizes.is_empty() || sizes[0] == 0 || !sizes.is_sorted_by(|a, b| a < b) {
            return refuse(format!(
                "layer {} was measured at sizes {sizes:?}: ascending ones from 1 on are needed",
                first.name
            ));
        }
        for layer in &self.layers {
            if !layer.measurements.iter().map(|m| m.samples).eq(sizes.iter().copied()) {
                return refuse(format!(
                    "layer {} was measured at other sizes than layer {}",
                    layer.name, first.name
                ));
            }
            let times =
                layer.measurements.iter().flat_map(|m| [m.forward, m.recompute, m.backward]);
            let wrong = times
                .chain([layer.update])
                .find(|time| [time.median, time.spread].iter().any(|v| !v.is_finite() || *v < 0.0));
            if let Some(time) = wrong {
                return refuse(format!(
                    "layer {} has a time of {} s with a spread of {} s: both must be finite and \
                     at least 0",
                    layer.name, time.median, time.spread
                ));
            }
        }
        Ok(())
    }
}

fn unknown_bytes() -> TuneError {
    TuneError::Request {
        what: "bytes",
        reason:
            "the profile doesn't say what layers keep: measure where the device reports its memory"
                .to_owned(),
    }
}

fn costs_of(costs: impl Iterator<Item = f64>) -> Result<Costs, TuneError> {
    Costs::new(costs.collect::<Vec<_>>())
        .map_err(|error| TuneError::Profile { reason: error.to_string() })
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

    /// Its bytes at these costs; nothing if they don't say.
    fn memory(&self, cost: &LayerCost) -> Option<LayerMemory> {
        let memory = cost.memory?;
        Some(LayerMemory {
            activations: memory.activation_bytes,
            input: cost.input_bytes,
            output: cost.output_bytes,
            gradients: self.gradient_bytes,
            forward: memory.forward_bytes,
            untaped: memory.untaped_bytes,
            backward: memory.backward_bytes,
        })
    }

    fn at(&self, samples: usize) -> Option<LayerCost> {
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
        let time = |of: fn(&Measurement) -> Time| {
            let (low, high) = (of(low).median, of(high).median);
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
            memory: low.memory.zip(high.memory).map(|(low, high)| MemoryUse {
                activation_bytes: bytes(low.activation_bytes, high.activation_bytes),
                forward_bytes: bytes(low.forward_bytes, high.forward_bytes),
                untaped_bytes: bytes(low.untaped_bytes, high.untaped_bytes),
                backward_bytes: bytes(low.backward_bytes, high.backward_bytes),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_medians_with_quartiles() {
        assert_eq!(Time::of(vec![3.0]), Time::exactly(3.0));
        let found = Time::of(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((found.median, found.spread), (3.0, 2.0));
        assert_eq!(Time::of(vec![]), Time::default());
    }

    fn measurement(samples: usize, seconds: f64) -> Measurement {
        Measurement {
            samples,
            forward: Time::exactly(seconds),
            recompute: Time::exactly(seconds),
            backward: Time { median: 2.0 * seconds, spread: 0.1 },
            input_bytes: 10,
            output_bytes: 10 * samples as u64,
            memory: Some(MemoryUse {
                activation_bytes: 100 * samples as u64,
                ..MemoryUse::default()
            }),
        }
    }

    fn layer(measurements: Vec<Measurement>) -> LayerProfile {
        LayerProfile {
            name: "layer".to_owned(),
            parameter_bytes: 1,
            gradient_bytes: 2,
            optimizer_bytes: 3,
            update_bytes: 4,
            staged_bytes: 5,
            update: Time::default(),
            measurements,
        }
    }

    #[test]
    fn sizes_between_the_measured_ones_are_on_a_straight_line() {
        let layers =
            vec![layer(vec![measurement(2, 1.0), measurement(4, 2.0), measurement(12, 3.0)])];
        let profile = Profile::new("test", layers).expect("valid");
        let at = |samples| profile.at(samples).map(|costs| costs[0]);
        assert_eq!(at(2).map(|c| (c.forward, c.output_bytes)), Some((1.0, 20)));
        assert_eq!(at(3).map(|c| (c.backward, c.output_bytes)), Some((3.0, 30)));
        let kept = |cost: LayerCost| cost.memory.map(|memory| memory.activation_bytes);
        assert_eq!(at(8).map(|c| (c.recompute, kept(c))), Some((2.5, Some(800))));
        assert_eq!(at(12).map(|c| c.forward), Some(3.0));
        assert_eq!((at(1), at(13)), (None, None));
    }

    #[test]
    fn files_go_both_ways_and_are_checked() {
        let profile = Profile::new("test", vec![layer(vec![measurement(1, 0.5)])]).expect("valid");
        let profile = profile.with_workspace(6);
        let text = profile.to_json().expect("writes");
        assert_eq!(Profile::from_json(&text).expect("reads"), profile);

        let error = |text: &str| Profile::from_json(text).expect_err("refused").to_string();
        let newer = text.replace("\"version\": 2", "\"version\": 3");
        assert_eq!(
            error(&newer),
            "the profile has version 3, this program reads version 2: measure again"
        );
        assert!(error("").starts_with("this is no profile"));
        assert!(error(&text.replace("0.5", "-0.5")).contains("a time of -0.5 s"));
        assert!(
            error(r#"{"version": 2, "device": "", "workspace_bytes": 0, "layers": []}"#)
                .contains("no layers")
        );
    }

    #[test]
    fn all_layers_are_measured_at_the_same_sizes() {
        let refused = |layers| Profile::new("test", layers).expect_err("refused").to_string();
        assert!(refused(vec![layer(vec![])]).contains("sizes []"));
        assert!(refused(vec![layer(vec![measurement(0, 1.0)])]).contains("from 1 on"));
        let twice = vec![measurement(2, 1.0), measurement(2, 1.0)];
        assert!(refused(vec![layer(twice)]).contains("ascending"));
        let (a, b) = (layer(vec![measurement(1, 1.0)]), layer(vec![measurement(2, 1.0)]));
        assert!(refused(vec![a, b]).contains("other sizes"));
    }
}
