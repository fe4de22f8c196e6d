//! The times and bytes of each layer at several sizes of a micro-batch, and the file they are kept
//! in.
//!
//! Times are in seconds and measured at the sizes that will be run: a large batch's time divided by
//! the number of micro-batches hides what every action costs however small it is. Between two
//! measured sizes they are taken from the straight line, and beyond them not at all.

mod counted;
mod layer;
mod skip;
mod time;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use stovepipe_checkpoint::LayerActivations;
use stovepipe_partition::Costs;
use stovepipe_schedule::StageMemory;

pub(crate) use self::layer::LayerCost;
pub use self::layer::{LayerProfile, Measurement};
pub(crate) use self::skip::SkipCost;
pub use self::skip::SkipProfile;
pub use self::time::Time;
use crate::error::TuneError;

/// Every layer of a model, measured on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    version: u32,
    device: String,
    workspace_bytes: u64,
    layers: Vec<LayerProfile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skips: Vec<SkipProfile>,
}

impl Profile {
    /// The version that is written and read.
    pub const VERSION: u32 = 2;

    /// A profile of the layers of a model, in model order, measured on `device`.
    ///
    /// # Errors
    ///
    /// [`TuneError::Profile`] unless there is a layer, all were measured at the same sizes,
    /// ascending and at least 1, and every time is finite and not negative.
    pub fn new(
        device: impl Into<String>,
        mut layers: Vec<LayerProfile>,
    ) -> Result<Self, TuneError> {
        layers.iter_mut().for_each(LayerProfile::complete);
        let (version, device) = (Self::VERSION, device.into());
        let profile = Self { version, device, workspace_bytes: 0, layers, skips: Vec::new() };
        profile.check()?;
        Ok(profile)
    }

    /// With the model's skip connections.
    ///
    /// # Errors
    ///
    /// [`TuneError::Profile`] unless each goes up from one layer to another, and has its bytes at
    /// every size.
    pub fn with_skips(self, skips: impl Into<Vec<SkipProfile>>) -> Result<Self, TuneError> {
        let profile = Self { skips: skips.into(), ..self };
        profile.check_skips()?;
        Ok(profile)
    }

    /// With the bytes that a rank's threads keep for themselves once they have computed, such as
    /// what matrix products are packed into.
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
        /// The fields of every version.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        #[derive(Deserialize)]
        struct Body {
            device: String,
            workspace_bytes: u64,
            layers: Vec<LayerProfile>,
            #[serde(default)]
            skips: Vec<SkipProfile>,
        }
        // Some editors begin a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let Head { version } = serde_json::from_str(text)?;
        if version != Self::VERSION {
            return Err(TuneError::Version { found: version, known: Self::VERSION });
        }
        let Body { device, workspace_bytes, layers, skips } = serde_json::from_str(text)?;
        Self::new(device, layers)?.with_workspace(workspace_bytes).with_skips(skips)
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// [`TuneError::Json`], which a checked profile never causes.
    pub fn to_json(&self) -> Result<String, TuneError> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// The device that was measured.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The layers, in model order.
    #[must_use]
    pub fn layers(&self) -> &[LayerProfile] {
        &self.layers
    }

    /// The model's skip connections.
    #[must_use]
    pub fn skips(&self) -> &[SkipProfile] {
        &self.skips
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

    /// The bytes of every layer to cut by: parameters, gradients, optimizer state, and what it
    /// keeps from forward to backward for `samples` samples.
    ///
    /// # Errors
    ///
    /// [`TuneError::Request`] unless `samples` is within the measured sizes and the profile
    /// [knows memory](Self::knows_memory).
    pub fn bytes(&self, samples: usize) -> Result<Costs, TuneError> {
        let costs = self.at(samples).ok_or_else(|| self.not_measured(samples))?;
        let bytes = self.layers.iter().zip(&costs).map(|(layer, cost)| {
            let kept = cost.memory?.activations;
            Some(layer.fixed_bytes().saturating_add(kept) as f64)
        });
        let bytes: Option<Vec<f64>> = bytes.collect();
        let bytes = bytes.ok_or_else(unknown_bytes)?;
        costs_of(bytes.into_iter())
    }

    /// The price of keeping and of recomputing each layer for `samples` samples, by which
    /// [`Budget`](stovepipe_checkpoint::Budget) decides.
    ///
    /// # Errors
    ///
    /// As [`bytes`](Self::bytes).
    pub fn activations(&self, samples: usize) -> Result<Vec<LayerActivations>, TuneError> {
        let costs = self.at(samples).ok_or_else(|| self.not_measured(samples))?;
        let priced = |cost: &LayerCost| {
            Some(LayerActivations { memory: cost.memory?, recompute: cost.recompute })
        };
        costs.iter().map(priced).collect::<Option<_>>().ok_or_else(unknown_bytes)
    }

    /// The bytes of a stage of these layers for micro-batches of `samples` samples, as
    /// [`Program::peak_bytes`](stovepipe_schedule::Program::peak_bytes) counts them.
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
        let memory = costs.iter().map(|cost| cost.memory);
        let sum =
            |bytes: fn(&LayerProfile) -> u64| own.iter().map(bytes).fold(0, u64::saturating_add);
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

    /// The bytes of every skip for `samples` samples, if that is within the measured sizes.
    pub(crate) fn skips_at(&self, samples: usize) -> Vec<SkipCost> {
        let sizes: Vec<usize> = self.sizes().collect();
        self.skips.iter().filter_map(|skip| skip.at(&sizes, samples)).collect()
    }

    fn check_skips(&self) -> Result<(), TuneError> {
        let (layers, sizes) = (self.layers.len(), self.sizes().count());
        for SkipProfile { from, to, bytes } in &self.skips {
            let found = bytes.len();
            let reason = if from >= to || *to >= layers {
                format!("a skip from layer {from} to {to} isn't one among {layers} layers")
            } else if found != sizes {
                format!("the skip from layer {from} to {to} has {found} sizes, layers have {sizes}")
            } else {
                continue;
            };
            return Err(TuneError::Profile { reason });
        }
        Ok(())
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

#[cfg(test)]
mod tests;
