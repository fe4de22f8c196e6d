//! One forward of one layer, run alike by a stage at work, by the profiler and by a rehearsal.

use std::ops::Range;

use burn::tensor::Device;

use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::tape::{Forward, Forwarded};
use crate::backend::Backend;
use crate::error::shape::ShapeError;
use crate::error::stage::StageError;
use crate::layer::context::{ForwardKey, LayerContext, Pass, SideInputs};
use crate::value::packet::Packet;
use crate::value::part::Part;
use crate::value::side::SideValues;

/// The circumstances of a forward: everything that a layer is told besides its input.
pub(crate) struct LayerRun<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) device: &'a Device,
    pub(crate) pass: Pass,
    pub(crate) key: ForwardKey,
    /// The samples of the mini-batch that the micro-batch holds.
    pub(crate) samples: Range<usize>,
    /// The side inputs of the micro-batch, by name.
    pub(crate) side: Option<&'a SideValues>,
}

impl LayerRun<'_> {
    /// Runs `layer` forward. `pop` hands out skip values by their names in the model.
    pub(crate) fn forward(
        &self,
        layer: &mut dyn ErasedLayer,
        inputs: Vec<Box<dyn Part>>,
        mode: Forward,
        mut pop: impl FnMut(&str) -> Option<Packet>,
    ) -> Result<Forwarded, StageError> {
        let name = layer.name().to_owned();
        let (backend, device) = (self.backend, self.device);
        let mut context = LayerContext::new(self.pass, self.key, self.samples.clone(), &name);
        context.side = self.side.map(|values| SideInputs { values, backend, device });
        for skip in layer.pops() {
            let value = pop(skip).ok_or_else(|| StageError::gone(&name))?;
            context.popped.insert(skip.clone(), value);
        }
        layer.guarded(|layer| layer.forward(inputs, &mut context, mode))
    }

    /// Refuses outputs of the model's last layer that don't hold the samples along their first
    /// axis.
    ///
    /// Joined over the micro-batches, or compared with targets, they would mean something else
    /// for every number of micro-batches.
    pub(crate) fn check_output(
        &self,
        layer: &dyn ErasedLayer,
        outputs: &[Box<dyn Part>],
    ) -> Result<(), ShapeError> {
        let samples = self.samples.len();
        // Absent values have no axes.
        let mut others = outputs.iter().filter(|part| part.shape().first() != Some(&samples));
        match others.find(|part| !part.shape().is_empty()) {
            Some(part) => Err(ShapeError::Output {
                layer: layer.name().to_owned(),
                output: part.describe(),
                samples,
            }),
            None => Ok(()),
        }
    }
}
