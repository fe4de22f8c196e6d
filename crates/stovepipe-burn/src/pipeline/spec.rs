//! The specification of a pipeline: everything is known and checked, and nothing made yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, TensorData};
use stovepipe_partition::Partition;
use stovepipe_schedule::{Rank, Stage};

use crate::autodiff::erased_layer::ErasedLayer;
use crate::loss::erasure::ErasedLoss;
use crate::loss::scaling::Scaler;
use crate::model::layer_spec::{LayerFacts, LayerSpec, MakeContext, first_trained};
use crate::model::paths::path_in_model;
use crate::model::skips::{Skip, names_of};
use crate::model::ties::TiedUse;
use crate::parameters::find::FloatParameter;
use crate::pipeline::planner::Planner;
use crate::pipeline::precision::Precision;
use crate::pipeline::summary::{SharedDevice, StageSummary};
use crate::stage::burn_stage::{BurnStage, Carried, Joint};
use crate::stage::routes::Routes;
use crate::stage::settings::StageSettings;
use crate::stage::tied_gradients::TiedUses;

/// A pipeline that is specified and checked, and not made yet.
pub(crate) struct PipelineSpec {
    pub(crate) layers: Vec<LayerSpec>,
    pub(crate) layer_facts: Vec<LayerFacts>,
    pub(crate) partition: Partition,
    pub(crate) planner: Planner,
    pub(crate) skips: Vec<Skip>,
    /// The devices, at least one. Rank r has the one of number r modulo their number.
    pub(crate) devices: Vec<Device>,
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) precision: Precision,
    pub(crate) rates: Option<ModuleLrScheduler>,
    pub(crate) loss: Option<Arc<ErasedLoss>>,
    pub(crate) scaler: Option<Scaler>,
    pub(crate) metric_names: Vec<String>,
    pub(crate) settings: StageSettings,
    /// The values of tied parameters that have been made, by the path of their first use.
    pub(crate) tied_values: BTreeMap<String, TensorData>,
}

impl PipelineSpec {
    /// Describes each stage.
    pub(crate) fn summaries(&self) -> Vec<StageSummary> {
        let summary = |stage: Stage| {
            let range = self.partition.range(stage.index());
            let rank = self.planner.placement[stage.index()];
            StageSummary {
                stage,
                rank,
                layers: self.layers[range.clone()]
                    .iter()
                    .map(|layer| layer.name.to_string())
                    .collect(),
                parameters: self.layer_facts[range].iter().map(|facts| facts.parameters).sum(),
                device: self.settings.backend.device_name(self.device(rank)),
            }
        };
        Stage::first(self.partition.parts()).map(summary).collect()
    }

    /// Returns the device of a rank.
    pub(crate) fn device(&self, rank: Rank) -> &Device {
        &self.devices[rank.index() % self.devices.len()]
    }

    /// Finds the devices that several ranks share, on which they wait for each other.
    pub(crate) fn shared_devices(&self, ranks: usize) -> Vec<SharedDevice> {
        let mut found: Vec<(&Device, Vec<Rank>)> = Vec::new();
        for rank in Rank::first(ranks) {
            let device = self.device(rank);
            match found.iter_mut().find(|(other, _)| *other == device) {
                Some((_, ranks)) => ranks.push(rank),
                None => found.push((device, vec![rank])),
            }
        }
        let backend = &self.settings.backend;
        found.retain(|(device, ranks)| ranks.len() > 1 && !backend.is_parallel(device));
        let name = |device: &Device| backend.device_name(device);
        let shared = found.into_iter();
        shared.map(|(device, ranks)| SharedDevice { device: name(device), ranks }).collect()
    }

    /// Returns the number of the first layer with something to train; the number of layers if
    /// there is none.
    fn first_trained(&self) -> usize {
        first_trained(&self.layer_facts).unwrap_or(self.layer_facts.len())
    }

    /// Makes a layer on the device of `rank`.
    pub(crate) fn layer(&self, layer: usize, rank: Rank) -> Box<dyn ErasedLayer> {
        let context = MakeContext {
            seed: self.settings.seed,
            device: self.device(rank),
            optimizer: &self.optimizer,
            compute: self.precision.of_layer(&self.layers[layer].name),
        };
        let mut made = (self.layers[layer].make)(&context);
        made.name_skips(names_of(&self.skips, layer, self.first_trained()));
        made
    }

    /// Finds the routes of skip connections of a stage.
    pub(crate) fn routes(&self, stage: Stage) -> Routes {
        Routes::of(stage, &self.planner.edges, &self.skips, &self.partition)
    }

    /// Returns the shapes of tied parameters, by the paths of all their uses.
    pub(crate) fn shapes_of_ties(&self) -> BTreeMap<String, Vec<usize>> {
        let uses = self.settings.ties.iter().flatten();
        let shape = |tied: &TiedUse| {
            let (name, facts) = (&self.layers[tied.layer].name, &self.layer_facts[tied.layer]);
            let is_it = |float: &&FloatParameter| path_in_model(name, &float.path) == tied.path;
            Some((tied.path.clone(), facts.floats.iter().find(is_it)?.shape.clone()))
        };
        uses.filter_map(shape).collect()
    }

    /// Makes the stages of a rank.
    pub(crate) fn stages(&mut self, rank: Rank) -> Vec<(Stage, BurnStage)> {
        let stages = self.partition.parts();
        let own =
            Stage::first(stages).filter(|stage| self.planner.placement[stage.index()] == rank);
        let own: Vec<Stage> = own.collect();
        let mut made = Vec::with_capacity(own.len());
        for stage in own {
            let range = self.partition.range(stage.index());
            let mut layers: Vec<_> = range.clone().map(|layer| self.layer(layer, rank)).collect();
            let ties = Arc::clone(&self.settings.ties);
            for tie in ties.iter().filter(|tie| tie.iter().any(|tied| range.contains(&tied.layer)))
            {
                let first = &tie[0];
                if !self.tied_values.contains_key(&first.path) {
                    let parameters = match first.layer.checked_sub(range.start) {
                        Some(place) if place < layers.len() => layers[place].parameters(),
                        // The first use may be in another process, so its layer is made for its
                        // value only.
                        _ => self.layer(first.layer, rank).parameters(),
                    };
                    self.tied_values.extend(parameters.into_iter().filter(|p| p.0 == first.path));
                }
                for tied in tie[1..].iter().filter(|tied| range.contains(&tied.layer)) {
                    let value = &self.tied_values[&first.path];
                    layers[tied.layer - range.start].set_parameter(&tied.path, value);
                }
            }
            let is_last = stage.index() + 1 == stages;
            let frozen = self.first_trained().saturating_sub(range.start).min(layers.len());
            let stage_made = BurnStage {
                layers,
                frozen,
                trains_before: self.first_trained() < range.start,
                device: self.device(rank).clone(),
                is_first: stage.index() == 0,
                is_last,
                loss: self.loss.clone().filter(|_| is_last),
                settings: self.settings.clone(),
                routes: self.routes(stage),
                tied: TiedUses::of(stage, &ties, &self.partition),
                joints: self.layer_facts[range.clone()].iter().map(Joint::of).collect(),
                carried: Carried::default(),
                current: None,
            };
            made.push((stage, stage_made));
        }
        made
    }
}
