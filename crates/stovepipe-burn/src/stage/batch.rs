//! The input of a step: the mini-batch, cut into micro-batches.

use std::ops::Range;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use stovepipe_runtime::Agreement;

use crate::error::train::TrainError;
use crate::stage::split::micro_batch_ranges;
use crate::value::packet::Packet;
use crate::value::side::{SideValues, slice_all};

/// The purpose of a step.
#[derive(Clone)]
pub(crate) enum Task {
    /// Updates the parameters at this learning rate.
    Train(ModuleLearningRate),
    /// Keeps the gradients for the next update.
    Accumulate,
    /// Computes the gradients and hands them out.
    Gradients,
    /// Computes the loss.
    Evaluate,
    /// Hands out the model's output.
    Predict,
}

impl Task {
    /// Returns whether a backward follows the forward.
    pub(crate) fn trains(&self) -> bool {
        matches!(self, Self::Train(_) | Self::Accumulate | Self::Gradients)
    }

    /// Returns whether the gradients are used now, and not kept for a later step.
    pub(crate) fn uses_gradients(&self) -> bool {
        matches!(self, Self::Train(_) | Self::Gradients)
    }
}

/// The input of a step: the mini-batch, cut into micro-batches.
pub(crate) struct Batch {
    pub(crate) task: Task,
    /// The facts that processes compare.
    pub(crate) agreement: Agreement,
    /// The number of updates made before this step.
    pub(crate) updates: u64,
    /// The factor that the loss is multiplied by for the backward.
    pub(crate) scale: f64,
    /// The samples of the mini-batch that each micro-batch holds.
    pub(crate) samples: Vec<Range<usize>>,
    /// The inputs by micro-batch.
    pub(crate) inputs: Vec<Packet>,
    /// The targets by micro-batch; empty where no loss is computed.
    pub(crate) targets: Vec<Packet>,
    /// The side inputs by micro-batch and name.
    pub(crate) side: Vec<SideValues>,
}

impl Batch {
    /// Sets the facts that processes compare.
    pub(crate) fn with_agreement(self, agreement: Agreement) -> Self {
        Self { agreement, ..self }
    }
}

/// The tensors of a mini-batch.
#[derive(Hash)]
pub(crate) struct Values {
    pub(crate) input: Packet,
    pub(crate) target: Option<Packet>,
    /// The side inputs by name.
    pub(crate) side: SideValues,
}

impl Values {
    /// Cuts the tensors into `asked` micro-batches, or into fewer if there are fewer samples.
    ///
    /// Fails if there is no sample, or if the target or side inputs per sample have other
    /// numbers of samples than the input.
    pub(crate) fn cut(
        self,
        asked: usize,
        task: Task,
        updates: u64,
        scale: f64,
    ) -> Result<Batch, TrainError> {
        // Operations on a tensor with autodiff on would be recorded, and stay.
        let input = self.input.detached();
        let target = self.target.map(Packet::detached);
        let side = self.side.into_iter().map(|(name, value)| (name, value.detached()));
        let side: SideValues = side.collect();
        let refuse = |what| move |reason| TrainError::Batch { what, reason };
        let samples = input.samples().map_err(refuse("input"))?;
        if samples == 0 {
            return Err(refuse("input")("it has no samples".to_owned()));
        }
        if let Some(target) = &target {
            let targets = target.samples().map_err(refuse("target"))?;
            if targets != samples {
                return Err(TrainError::Samples { input: samples, target: targets });
            }
        }
        for (name, value) in &side {
            let Some(found) = value.samples() else { continue };
            let found = found.map_err(refuse("side input"))?;
            if found != samples {
                let name = name.clone();
                return Err(TrainError::SideInput { name, input: samples, found });
            }
        }
        let ranges = micro_batch_ranges(samples, asked);
        if ranges.len() < asked {
            tracing::warn!(
                samples,
                asked,
                used = ranges.len(),
                "the mini-batch has fewer samples than micro-batches were asked for"
            );
        }
        let cut = |packet: &Packet| ranges.iter().map(|range| packet.slice(range)).collect();
        Ok(Batch {
            task,
            agreement: Agreement::new(),
            updates,
            scale,
            side: ranges.iter().map(|range| slice_all(&side, range)).collect(),
            inputs: cut(&input),
            targets: target.as_ref().map(cut).unwrap_or_default(),
            samples: ranges.clone(),
        })
    }
}
