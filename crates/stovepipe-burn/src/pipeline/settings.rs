//! The settings of a pipeline besides its model and its loss.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::FloatDType;
use stovepipe_checkpoint::{CheckpointPolicy, Never};
use stovepipe_partition::{Minimax, Partitioner};
use stovepipe_schedule::{GPipe, Schedule, Shape};
use stovepipe_transport::Transport;

use crate::backend::Backend;
use crate::error::build::BuildError;
use crate::loss::erasure::ErasedLoss;
use crate::loss::scaling::LossScaling;
use crate::parameters::averaging::Clipping;
use crate::pipeline::layer_costs::LayerCosts;
use crate::value::packet::Packet;

/// The settings of a [`Builder`](crate::Builder), none of which depends on the model's types.
pub(crate) struct Settings {
    pub(crate) backend: Option<Arc<dyn Backend>>,
    pub(crate) transport: Option<Arc<dyn Transport<Packet>>>,
    pub(crate) stages: usize,
    pub(crate) stages_per_rank: Option<usize>,
    pub(crate) micro_batches: Option<usize>,
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) policy: Box<dyn CheckpointPolicy>,
    pub(crate) partitioner: Box<dyn Partitioner>,
    pub(crate) costs: LayerCosts,
    pub(crate) optimizer: Option<ModuleOptimizer>,
    pub(crate) rates: Option<ModuleLrScheduler>,
    pub(crate) seed: u64,
    pub(crate) atomic_updates: bool,
    /// The names of layers that may be recomputed although they hold modules that can't be.
    pub(crate) allowed: Vec<String>,
    /// The names of layers that compute in 32 bits at least.
    pub(crate) full_precision: Vec<String>,
    pub(crate) clipping: Option<Clipping>,
    pub(crate) compute_dtype: Option<FloatDType>,
    pub(crate) loss_scaling: Option<LossScaling>,
    pub(crate) finds_non_finite: bool,
    pub(crate) metrics: Vec<(String, Box<ErasedLoss>)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: None,
            transport: None,
            stages: 1,
            stages_per_rank: None,
            micro_batches: None,
            schedule: Box::new(GPipe::default()),
            policy: Box::new(Never),
            partitioner: Box::new(Minimax),
            costs: LayerCosts::default(),
            optimizer: None,
            rates: None,
            seed: 0,
            atomic_updates: false,
            allowed: Vec::new(),
            full_precision: Vec::new(),
            clipping: None,
            compute_dtype: None,
            loss_scaling: None,
            finds_non_finite: false,
            metrics: Vec::new(),
        }
    }
}

impl Settings {
    /// Returns the backend, which must have been given.
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, BuildError> {
        self.backend.clone().ok_or(BuildError::Missing { what: "backend", method: "backend" })
    }

    /// Returns the shape: ranks, stages per rank and micro-batches.
    pub(crate) fn shape(&self) -> Result<Shape, BuildError> {
        let default = Some(self.schedule.default_stages_per_rank())
            .filter(|n| self.stages.is_multiple_of(*n));
        let stages_per_rank = self.stages_per_rank.or(default).unwrap_or(1);
        for (what, value) in
            [("the number of stages", self.stages), ("stages_per_rank", stages_per_rank)]
        {
            if value == 0 {
                return Err(BuildError::Zero { what, value });
            }
        }
        if !self.stages.is_multiple_of(stages_per_rank) {
            return Err(BuildError::Schedule {
                schedule: self.schedule.name().to_owned(),
                reason: format!(
                    "{} stages can't be shared out {stages_per_rank} to a rank",
                    self.stages
                ),
            });
        }
        let ranks = self.stages / stages_per_rank;
        let micro_batches = self.micro_batches.unwrap_or(ranks.saturating_mul(4));
        if micro_batches == 0 {
            return Err(BuildError::Zero { what: "the number of micro-batches", value: 0 });
        }
        Ok(Shape::new(ranks, micro_batches).with_stages_per_rank(stages_per_rank))
    }
}
