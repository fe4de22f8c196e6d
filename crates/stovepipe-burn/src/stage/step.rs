//! The state of a stage while a step runs.

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

/// The state of a stage during a step. Micro-batches, layers and metrics go by their numbers.
pub(crate) struct StageStep {
    pub(crate) batch: Arc<Batch>,
    /// The tapes of consecutive layers, by micro-batch and the last of them.
    pub(crate) tapes: HashMap<(usize, usize), Tape>,
    /// The inputs of dropped segments, by micro-batch and first layer.
    pub(crate) kept_inputs: HashMap<(usize, usize), Vec<Box<dyn Part>>>,
    /// The tapes of the loss, by micro-batch.
    pub(crate) loss_tapes: HashMap<usize, LossTape>,
    /// The skip values, from when they are stashed or arrive until the backward of the layer
    /// that pops them.
    pub(crate) skip_values: SkipStore,
    /// The gradients of skip values, from that backward until they are sent or the layer that
    /// stashed the value runs backward.
    pub(crate) skip_gradients: SkipStore,
    /// The losses that layers add, by layer and micro-batch.
    pub(crate) added: BTreeMap<(usize, usize), Tensor<1>>,
    /// The observations of batch normalizations, by layer and micro-batch.
    pub(crate) observed: BTreeMap<(usize, usize), Vec<Observation>>,
    /// The sum and the weight of each metric, by metric and micro-batch.
    pub(crate) metrics: BTreeMap<(usize, usize), (Tensor<1>, Weight)>,
    /// The sum and the weight of the loss of each micro-batch, on the last stage.
    pub(crate) losses: BTreeMap<usize, (Tensor<1>, Weight)>,
    /// The outputs of the model by micro-batch, on the last stage.
    pub(crate) predictions: BTreeMap<usize, Packet>,
    /// The averaging of the gradients, once it is known.
    pub(crate) averaging: Averaging,
    /// Says whether the step has overflowed: a gradient isn't finite, and all are to be
    /// forgotten.
    pub(crate) overflowed: bool,
    /// The averaged gradients by path, if the step is for them.
    pub(crate) gradients: BTreeMap<String, TensorData>,
}

impl StageStep {
    /// Begins a step.
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
