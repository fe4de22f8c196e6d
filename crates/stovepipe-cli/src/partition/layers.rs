//! The layers that are cut: their costs and the bytes they need, from arguments or from a profile.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use stovepipe_partition::{Costs, LayerBytes};
use stovepipe_tune::Profile;

use crate::input;
use crate::units::{self, Amount, Bytes, Unit};

/// The layers.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("layers").args(["costs", "profile"]).required(true))]
pub(super) struct LayerArguments {
    /// The cost of each layer, separated by commas: times, bytes, parameters.
    #[arg(long, value_name = "C,…", value_delimiter = ',', value_parser = units::cost)]
    #[arg(allow_hyphen_values = true)]
    costs: Vec<Amount>,
    /// The profile of a model, instead of costs: the times and bytes of its layers as measured.
    #[arg(long, value_name = "FILE", conflicts_with_all = FOR_COSTS)]
    profile: Option<PathBuf>,
    /// Samples in a micro-batch; by default the largest size that was measured.
    #[arg(long, value_name = "N", conflicts_with = "costs")]
    samples: Option<usize>,
    /// The costs that are taken from the profile.
    #[arg(long, value_enum, default_value_t = By::Time, conflicts_with = "costs")]
    by: By,
    /// The costs of cutting before each layer except the first, or one for all: the time that the
    /// parts on both sides are busy with what crosses it.
    #[arg(long, value_name = "C,…", value_delimiter = ',', value_parser = units::cost)]
    #[arg(allow_hyphen_values = true)]
    cut_costs: Vec<Amount>,
    /// Bytes that each layer needs all the time, or one number for all: parameters, gradients,
    /// optimizer state.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::bytes)]
    #[arg(allow_hyphen_values = true)]
    fixed_bytes: Vec<Bytes>,
    /// Bytes of activations that each layer keeps for a micro-batch, or one number for all.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::bytes)]
    #[arg(allow_hyphen_values = true)]
    kept_bytes: Vec<Bytes>,
    /// Bytes of each layer's input, or one number for all, which a part that begins with it keeps
    /// for a micro-batch to recompute the others from.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::bytes)]
    #[arg(allow_hyphen_values = true)]
    entry_bytes: Vec<Bytes>,
    /// Bytes of activations that each layer needs while a micro-batch is recomputed, or one number
    /// for all.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::bytes)]
    #[arg(allow_hyphen_values = true)]
    working_bytes: Vec<Bytes>,
}

/// Arguments for what a profile knows itself.
const FOR_COSTS: [&str; 4] = ["fixed_bytes", "kept_bytes", "entry_bytes", "working_bytes"];

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum By {
    /// The time of forward and backward.
    Time,
    /// Parameters, gradients, optimizer state, and the activations of a micro-batch.
    Bytes,
}

/// Layers to be cut.
pub(super) struct Layers {
    pub(super) costs: Costs,
    /// That of all costs.
    pub(super) unit: Unit,
    /// The costs of cuts, if any.
    pub(super) cut_costs: Option<Vec<f64>>,
    /// The needs of each layer, if they are known.
    pub(super) bytes: Option<Vec<LayerBytes>>,
}

impl LayerArguments {
    pub(super) fn read(&self) -> Result<Layers> {
        let layers = match &self.profile {
            Some(file) => self.measured(file)?,
            None => self.given()?,
        };
        let cuts: Vec<f64> = self.cut_costs.iter().map(|cost| cost.value).collect();
        let cut_costs = match &cuts[..] {
            [] => None,
            cuts => Some(each("cut-costs", cuts, layers.costs.len() - 1, "places between layers")?),
        };
        Ok(Layers { cut_costs, ..layers })
    }

    /// Whether bytes are given with a unit, or come from a profile.
    pub(super) fn have_byte_units(&self) -> bool {
        self.profile.is_some() || Bytes::have_unit(self.needs().into_iter().flatten())
    }

    fn needs(&self) -> [&[Bytes]; 4] {
        [&self.fixed_bytes, &self.kept_bytes, &self.entry_bytes, &self.working_bytes]
    }

    fn given(&self) -> Result<Layers> {
        let unit = units::common([("costs", &self.costs[..]), ("cut-costs", &self.cut_costs[..])])?;
        let costs: Vec<f64> = self.costs.iter().map(|cost| cost.value).collect();
        let costs = Costs::new(costs).context("--costs")?;
        let count = costs.len();
        let of = |name, bytes: &[Bytes]| match bytes {
            [] => Ok(vec![0; count]),
            bytes => {
                let counts: Vec<u64> = bytes.iter().map(|bytes| bytes.count).collect();
                each(name, &counts, count, "layers")
            }
        };
        let fixed = of("fixed-bytes", &self.fixed_bytes)?;
        let kept = of("kept-bytes", &self.kept_bytes)?;
        let entry = of("entry-bytes", &self.entry_bytes)?;
        let working = of("working-bytes", &self.working_bytes)?;
        let layer = |layer: usize| LayerBytes {
            fixed: fixed[layer],
            kept: kept[layer],
            entry: entry[layer],
            working: working[layer],
        };
        let are_known = self.needs().iter().any(|bytes| !bytes.is_empty());
        let bytes = are_known.then(|| (0..count).map(layer).collect());
        Ok(Layers { costs, unit, cut_costs: None, bytes })
    }

    fn measured(&self, file: &Path) -> Result<Layers> {
        let name = file.display();
        let text = input::text(file)?;
        let profile = Profile::from_json(&text).with_context(|| format!("{name} can't be used"))?;
        let samples = self.samples.or(profile.sizes().max()).unwrap_or(1);
        let (costs, unit, by) = match self.by {
            By::Time => (profile.times(samples), Unit::Time, "time"),
            By::Bytes => (profile.bytes(samples), Unit::Bytes, "bytes"),
        };
        let asked = || format!("{name}, --samples {samples} --by {by}");
        let costs = costs.with_context(asked)?;
        let by = [Amount::new(1.0, unit, by)];
        units::common([("by", &by[..]), ("cut-costs", &self.cut_costs[..])])?;
        let bytes = match profile.knows_memory() {
            true => Some(profile.activations(samples).with_context(asked)?),
            false => None,
        };
        let bytes = bytes.map(|activations| {
            let layers = profile.layers().iter().zip(activations);
            let layer = layers.map(|(layer, activations)| LayerBytes {
                fixed: layer
                    .parameter_bytes
                    .saturating_add(layer.gradient_bytes)
                    .saturating_add(layer.optimizer_bytes),
                kept: activations.memory.activations,
                ..LayerBytes::default()
            });
            layer.collect()
        });
        Ok(Layers { costs, unit, cut_costs: None, bytes })
    }
}

/// One value for each of so many, or one for all.
pub(super) fn each<T: Clone>(name: &str, values: &[T], count: usize, what: &str) -> Result<Vec<T>> {
    ensure!(
        values.len() == 1 || values.len() == count,
        "--{name} has {} values for {count} {what}: give one for each, or one for all",
        values.len()
    );
    Ok(if values.len() == 1 { vec![values[0].clone(); count] } else { values.to_vec() })
}
