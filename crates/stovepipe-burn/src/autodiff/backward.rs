//! The backward of consecutive layers whose forwards are on one tape.

use burn::tensor::Tensor;

use crate::autodiff::erased_layer::ErasedLayer;
use crate::autodiff::tape::{Backwarded, Tape};
use crate::error::panic::guarded;
use crate::error::stage::StageError;
use crate::layer::context::SkipValues;
use crate::loss::erasure::scaled;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// Adds to the gradients of the layers that are on the tape, and returns those of their inputs.
///
/// `stashed` holds the gradients of the skip values that the last layer stashed. They and
/// `gradients` are those of a loss multiplied by `scale`; what the layer added to the loss is
/// multiplied by it here.
pub(crate) fn run_backward(
    layers: &mut [Box<dyn ErasedLayer>],
    tape: Tape,
    gradients: Vec<Option<Box<dyn Part>>>,
    stashed: SkipValues,
    scale: f64,
) -> Result<Backwarded, StageError> {
    let name = match &*layers {
        [] => String::new(),
        [one] => one.name().to_owned(),
        [first, .., last] => format!("{}` to `{}", first.name(), last.name()),
    };
    let failed = |message| StageError::LayerPanicked { layer: name.clone(), message };
    guarded(|| differentiate(layers, tape, gradients, stashed, scale), failed)
}

fn differentiate(
    layers: &mut [Box<dyn ErasedLayer>],
    tape: Tape,
    gradients: Vec<Option<Box<dyn Part>>>,
    mut stashed: SkipValues,
    scale: f64,
) -> Result<Backwarded, StageError> {
    let Tape { inputs, modules, outputs, loss, popped, stashed: stashes, .. } = tape;
    let (mut ends, mut all) = (outputs, gradients);
    for (name, parts) in stashes {
        let gradients = stashed.remove(&name).map(Packet::into_gradients);
        all.extend(gradients.unwrap_or_else(|| parts.iter().map(|_| None).collect()));
        ends.extend(parts);
    }
    if let Some(last) = layers.last() {
        check_shapes(last.name(), &ends, &all)?;
    }
    // The sum of `y * dy` has the gradient `dy` at `y`, exactly. So its backward continues that of
    // the later layers.
    let seeds = ends.iter().zip(&all).filter(|(end, _)| end.is_tracked());
    let seed = seeds
        .filter_map(|(end, gradient)| end.seed(gradient.as_deref()?))
        .chain(loss.filter(Tensor::is_tracked).map(|loss| scaled(loss, scale)))
        .reduce(|sum, seed| sum + seed);
    // The ends hold the tape, which backward consumes.
    drop(ends);
    // Without a seed nothing behind these layers depends on a differentiable output of theirs.
    let mut gradients = seed.map(|seed| seed.backward());
    if let Some(gradients) = &mut gradients {
        for (layer, module) in layers.iter_mut().zip(modules) {
            layer.accumulate(module, gradients);
        }
    }
    let mut take = |leaves: Vec<Box<dyn Part>>| -> Vec<Option<Box<dyn Part>>> {
        leaves.iter().map(|leaf| leaf.take_gradient(gradients.as_mut()?)).collect()
    };
    let inputs = take(inputs);
    let popped = popped.into_iter();
    let popped = popped.map(|(name, leaves)| (name, Packet::gradients(take(leaves))));
    Ok(Backwarded { inputs, popped: popped.collect() })
}

/// Refuses a gradient whose shape differs from that of the output or skip value that it is for.
fn check_shapes(
    layer: &str,
    ends: &[Box<dyn Part>],
    gradients: &[Option<Box<dyn Part>>],
) -> Result<(), StageError> {
    for (end, gradient) in ends.iter().zip(gradients) {
        let gradient = gradient.as_ref().filter(|gradient| gradient.shape() != end.shape());
        if let Some(gradient) = gradient {
            return Err(StageError::Shape {
                layer: layer.to_owned(),
                output: end.describe(),
                gradient: gradient.describe(),
            });
        }
    }
    Ok(())
}
