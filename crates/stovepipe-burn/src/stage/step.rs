//! What a stage holds while a step runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};

use crate::autodiff::loss_tape::LossTape;
use crate::autodiff::tape::Tape;
use crate::layer::statistics::Observation;
use crate::loss::Weight;
use crate::parameters::averaging::Averaging;
use crate::stage::batch::Batch;
use crate::stage::routes::SkipStore;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// What a stage holds during a step. Micro-batches, layers and metrics go by their numbers.
pub(crate) struct StageStep {
    pub(crate) batch: Arc<Batch>,
    /// Tapes by micro-batch and layer.
    pub(crate) tapes: HashMap<(usize, usize), Tape>,
    /// Inputs of dropped segments, by micro-batch and first layer.
    pub(crate) kept_inputs: HashMap<(usize, usize), Vec<Box<dyn Part>>>,
    pub(crate) loss_tapes: HashMap<usize, LossTape>,
    /// Values on skip connections, from when they are stashed or arrive until the backward of the layer
    /// that pops them.
    pub(crate) skip_values: SkipStore,
    /// Their gradients, from that layer until they are sent or the layer that stashed them runs.
    pub(crate) skip_gradients: SkipStore,
    /// What layers add to the loss, by layer and micro-batch.
    pub(crate) added: BTreeMap<(usize, usize), Tensor<1>>,
    /// What batch normalizations saw, by layer and micro-batch.
    pub(crate) observed: BTreeMap<(usize, usize), Vec<Observation>>,
    /// By metric and micro-batch.
    pub(crate) metrics: BTreeMap<(usize, usize), (Tensor<1>, Weight)>,
    /// Sum and weight of each micro-batch, on the last stage.
    pub(crate) losses: BTreeMap<usize, (Tensor<1>, Weight)>,
    pub(crate) predictions: BTreeMap<usize, Packet>,
    /// How gradients are averaged, once that is known.
    pub(crate) averaging: Averaging,
    /// Whether gradients aren't finite and are to be forgotten.
    pub(crate) overflowed: bool,
    pub(crate) gradients: BTreeMap<String, TensorData>,
}

impl StageStep {
    /// The beginning of a step.
    pub(crate) fn new(batch: Arc<Batch>) -> Self {
        Self {
            batch,
            tapes: HashMap::new(),
            kept_inputs: HashMap::new(),
            loss_tapes: HashMap::new(),
            skip_values: SkipStore::new(),
            skip_gradients: SkipStore::new(),
            added: BTreeMap::new(),
            observed: BTreeMap::new(),
            metrics: BTreeMap::new(),
            losses: BTreeMap::new(),
            predictions: BTreeMap::new(),
            averaging: Averaging::mean(1.0),
            overflowed: false,
            gradients: BTreeMap::new(),
        }
    }
}
