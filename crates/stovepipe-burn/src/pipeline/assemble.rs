//! From a configuration to a specification. Everything that can be refused before a layer is
//! made is refused here.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::optim::SgdConfig;
use stovepipe_schedule::{Mode, Stage};

use crate::backend::error::BackendError;
use crate::error::build::BuildError;
use crate::loss::scaling::Scaler;
use crate::model::layer_spec::first_trained;
use crate::model::skips::{edges_of, skips_of};
use crate::model::ties::{Tie, ties_of};
use crate::pipeline::builder::Builder;
use crate::pipeline::checks::unreplayable_layers;
use crate::pipeline::optimizer_trial::check_optimizer;
use crate::pipeline::planner::Planner;
use crate::pipeline::precision::Precision;
use crate::pipeline::spec::PipelineSpec;
use crate::stage::settings::StageSettings;
use crate::value::boundary::Boundary;

impl<I: Boundary, O: Boundary, T> Builder<I, O, T> {
    /// Checks the configuration and cuts the model. No layer is made yet.
    pub(crate) fn assemble(self) -> Result<PipelineSpec, BuildError> {
        let Self { model, settings, .. } = &self;
        let layer_facts = model.check()?;
        let shape = settings.shape()?;
        let backend = settings.backend()?;
        let trains = self.loss.is_some();
        let missing = |what, method| Err(BuildError::Missing { what, method });
        if trains && settings.optimizer.is_none() {
            return missing("optimizer", "optimizer");
        }
        if trains && settings.rates.is_none() {
            return missing("learning rate", "learning_rate");
        }
        settings.check(&model.layers)?;
        let first_trained = first_trained(&layer_facts);
        if trains && first_trained.is_none() {
            return Err(BuildError::NothingTrains);
        }
        if let Some(optimizer) = settings.optimizer.as_ref().filter(|_| trains) {
            check_optimizer(optimizer, &model.layers, &layer_facts)?;
        }
        let costs = settings.costs.of_layers(&model.layers, &layer_facts)?;
        let partition = settings.partitioner.partition(&costs, shape.stages())?;
        let ties: Arc<[Tie]> = ties_of(&model.ties, &model.layers, &layer_facts)?.into();
        let skips = skips_of(&model.layers, &layer_facts)?;
        let mut edges = edges_of(&skips, &partition)?;
        if let Some(first) = first_trained {
            edges = edges.without_gradients_before(Stage::new(partition.part_of(first)));
        }
        let devices = backend.devices()?;
        if devices.is_empty() {
            return Err(BackendError::failed(backend.name(), "it lists no devices").into());
        }
        let used = &devices[..devices.len().min(shape.ranks)];
        let precision = Precision::new(settings, used, &model.layers, &layer_facts)?;
        let unreplayable = unreplayable_layers(&settings.allowed, &model.layers, &layer_facts);
        let Self { model, settings, loss, .. } = self;
        let mut planner = Planner {
            schedule: settings.schedule,
            policy: settings.policy,
            shape,
            layers: partition.sizes(),
            placement: Vec::new(),
            edges,
            unreplayable,
        };
        let plan = planner.plan(shape.micro_batches)?;
        planner.placement = plan.placement().to_vec();
        if trains && plan.mode() == Mode::Training {
            // This refuses what can't be recomputed; for the rest there is a warning.
            planner.program(Mode::Training, shape.micro_batches)?;
            for (_, layer, found) in &planner.unreplayable {
                tracing::warn!(
                    layer,
                    module = found.module,
                    "what it computes depends on what other threads do or on the order of \
                     micro-batches: {}",
                    found.advice
                );
            }
        }

        // The optimizer isn't used unless the pipeline trains.
        let optimizer = settings.optimizer.unwrap_or_else(|| SgdConfig::new().init());
        let (metric_names, metrics): (Vec<_>, Vec<_>) = settings.metrics.into_iter().unzip();
        Ok(PipelineSpec {
            layers: model.layers,
            layer_facts,
            partition,
            planner,
            skips,
            devices,
            optimizer,
            precision,
            rates: settings.rates,
            loss,
            scaler: settings.loss_scaling.map(Scaler::new),
            metric_names,
            tied_values: BTreeMap::new(),
            settings: StageSettings {
                backend,
                atomic_updates: settings.atomic_updates,
                seed: settings.seed,
                clipping: settings.clipping,
                forgets_overflows: settings.loss_scaling.is_some(),
                finds_non_finite: settings.finds_non_finite,
                metrics: metrics.into(),
                ties,
            },
        })
    }
}
