//! The type of float that each layer computes in.

use std::collections::BTreeSet;

use burn::tensor::{Device, FloatDType};

use crate::error::build::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};
use crate::pipeline::settings::Settings;

/// The type of float that each layer computes in, if it was set.
pub(crate) struct Precision {
    /// The type of most layers.
    dtype: Option<FloatDType>,
    /// The type of those that compute in full precision.
    full: FloatDType,
    /// The names of those.
    full_precision: BTreeSet<String>,
}

impl Precision {
    /// Refuses a type that these devices or layers can't compute in.
    pub(crate) fn new(
        settings: &Settings,
        devices: &[Device],
        layers: &[LayerSpec],
        layer_facts: &[LayerFacts],
    ) -> Result<Self, BuildError> {
        let own = devices.first().map(|device| device.settings().float_dtype);
        let wishes = layers.iter().zip(layer_facts).filter(|(_, facts)| facts.full_precision);
        let wishes = wishes.map(|(layer, _)| layer.name.to_string());
        let precision = Self {
            dtype: settings.compute_dtype,
            full: own.filter(|own| *own == FloatDType::F64).unwrap_or(FloatDType::F32),
            full_precision: settings.full_precision.iter().cloned().chain(wishes).collect(),
        };
        if let Some(dtype) = settings.compute_dtype {
            supports(devices, dtype)?;
            for (layer, facts) in layers.iter().zip(layer_facts) {
                if precision.of_layer(&layer.name) == Some(dtype) && own != Some(dtype) {
                    follows(dtype, &layer.name, facts)?;
                }
            }
        }
        Ok(precision)
    }

    /// Returns the type of a layer, or `None` if it computes in whatever its parameters are.
    pub(crate) fn of_layer(&self, name: &str) -> Option<FloatDType> {
        self.dtype.map(|dtype| if self.full_precision.contains(name) { self.full } else { dtype })
    }

    /// Describes the types for a comparison.
    pub(crate) fn describe(&self) -> String {
        match self.dtype {
            Some(dtype) => format!("{dtype:?}, {:?} in {:?}", self.full, self.full_precision),
            None => "that of the parameters".to_owned(),
        }
    }
}

/// Refuses a type that one of the devices can't compute in, or that isn't for mixed precision.
fn supports(devices: &[Device], dtype: FloatDType) -> Result<(), BuildError> {
    let refuse = |reason| Err(BuildError::ComputeDtype { dtype, reason });
    if !matches!(dtype, FloatDType::F16 | FloatDType::BF16 | FloatDType::F32) {
        return refuse("only F16, BF16 and F32 are for mixed precision".to_owned());
    }
    match devices.iter().find(|device| !device.supports_dtype(dtype)) {
        Some(device) => refuse(format!("{device:?} doesn't compute in it")),
        None => Ok(()),
    }
}

/// Refuses a layer of which something can't be cast.
fn follows(dtype: FloatDType, layer: &str, facts: &LayerFacts) -> Result<(), BuildError> {
    let refuse = |reason| Err(BuildError::ComputeDtype { dtype, reason });
    if facts.unreplayable.iter().any(|found| found.module == "BatchNorm") {
        return refuse(format!(
            "the running statistics of Burn's BatchNorm in layer `{layer}` would be cast for \
             good: use stovepipe's, which converts from it"
        ));
    }
    match facts.constants.first() {
        Some(constant) if !facts.casts_constants => refuse(format!(
            "`{constant}` in layer `{layer}` is no parameter, so that Burn doesn't cast it: \
             implement `Layer::cast_constants`, or let the layer compute in 32 bits with \
             `.full_precision(\"{layer}\")`"
        )),
        _ => Ok(()),
    }
}
