//! How large a model fits into a limit.

use anyhow::{Context, Result};
use bytesize::ByteSize;
use serde::Serialize;
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, Never};
use stovepipe_benches::{Model, mebibytes, table};

use crate::rehearsals::{GPIPE, Rehearsals, Setting};

/// The largest model within the limit.
#[derive(Serialize)]
pub(crate) struct Largest {
    policy: String,
    stages: usize,
    micro_batches: usize,
    layers: usize,
    parameters: usize,
    predicted: u64,
    measured: u64,
}

impl Rehearsals {
    /// The most layers with which every rank keeps to the limit.
    fn most_layers(&self, setting: Setting<'_>, limit: u64) -> Result<usize> {
        let fits = |layers: usize| -> Result<bool> {
            let model = Model { layers, ..setting.model };
            let needed = self.predict(Setting { model, ..setting })?;
            Ok(needed.iter().all(|(bytes, _)| *bytes <= limit))
        };
        let (mut most, mut too_many) = (0, setting.stages.max(2));
        while fits(too_many)? {
            (most, too_many) = (too_many, 2 * too_many);
        }
        while too_many - most > 1 {
            let middle = usize::midpoint(most, too_many);
            if middle >= setting.stages && fits(middle)? {
                most = middle;
            } else {
                too_many = middle;
            }
        }
        Ok(most)
    }

    /// The largest model whose fullest rank really keeps to the limit, not only as is predicted.
    fn largest(&self, setting: Setting<'_>, limit: u64) -> Result<Option<Largest>> {
        let mut layers = self.most_layers(setting, limit)?;
        while layers >= setting.stages {
            let setting = Setting { model: Model { layers, ..setting.model }, ..setting };
            let peak = self.fullest(setting)?.context("no rank")?;
            if peak.measured > limit {
                // No layer needs more than its share of what is needed, so none that fits is left
                // out.
                let share = layers as f64 * limit as f64 / peak.measured as f64;
                layers = (share as usize).min(layers - 1);
                continue;
            }
            let of_layer = self.profile.layers()[0].parameter_bytes as usize / size_of::<f32>();
            return Ok(Some(Largest {
                policy: peak.policy,
                stages: peak.stages,
                micro_batches: peak.micro_batches,
                layers,
                parameters: layers * of_layer,
                predicted: peak.predicted,
                measured: peak.measured,
            }));
        }
        Ok(None)
    }
}

/// Finds the largest models within the limit.
pub(crate) fn by_limit(
    rehearsals: &Rehearsals,
    stages: &[usize],
    micro_batches: &[usize],
    limit: u64,
) -> Result<Vec<Largest>> {
    let never = &|| -> Box<dyn CheckpointPolicy> { Box::new(Never) };
    let always = &|| -> Box<dyn CheckpointPolicy> { Box::new(Always) };
    let model = rehearsals.model;
    let plain = Setting { model, stages: 1, micro_batches: 1, schedule: GPIPE, policy: never };
    let mut found: Vec<Largest> = rehearsals.largest(plain, limit)?.into_iter().collect();
    for &stages in stages {
        let mut best: Option<(usize, usize)> = None;
        for &micro_batches in micro_batches.iter().filter(|m| **m <= model.batch) {
            let setting = Setting { stages, micro_batches, policy: always, ..plain };
            let layers = rehearsals.most_layers(setting, limit)?;
            if best.is_none_or(|(most, _)| layers > most) {
                best = Some((layers, micro_batches));
            }
        }
        if let Some((_, micro_batches)) = best {
            let setting = Setting { stages, micro_batches, policy: always, ..plain };
            found.extend(rehearsals.largest(setting, limit)?);
        }
    }
    Ok(found)
}

pub(crate) fn print(found: &[Largest], limit: ByteSize) {
    let header = [
        "recomputation",
        "stages",
        "micro-batches",
        "layers",
        "parameters",
        "times",
        "predicted",
        "measured",
    ];
    let least = found.first().map_or(1, |first| first.parameters);
    let rows = found.iter().map(|largest| {
        [
            largest.policy.clone(),
            largest.stages.to_string(),
            largest.micro_batches.to_string(),
            largest.layers.to_string(),
            format!("{:.1} M", largest.parameters as f64 / 1e6),
            format!("{:.1}", largest.parameters as f64 / least as f64),
            mebibytes(largest.predicted),
            mebibytes(largest.measured),
        ]
    });
    println!("the largest model with {limit} on each rank\n{}", table(header, rows));
}
