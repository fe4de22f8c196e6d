//! The checks of values on their way between devices, and of numbers drawn there.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::model::failure_of;
use super::reference::Reference;
use super::{Outcome, Verdict};
use crate::backend::Backend;
use crate::layer::Layer;
use crate::layer::context::LayerContext;
use crate::model::sequential::Sequential;
use crate::pipeline::Pipeline;
use crate::value::boundary::{from_parts, into_packet};

/// A value with every kind of tensor.
type Value = (Tensor<2>, Tensor<1, Int>, Option<Tensor<2, Bool>>);

/// Checks that every kind of value arrives on every device as it was, from the host and from
/// every other device, and comes back so.
pub(super) fn moves_values(backend: &Arc<dyn Backend>) -> Verdict {
    let host = Device::flex();
    let floats = [1.0f32, -0.1, f32::MIN_POSITIVE, 3.0e38, 0.0, 1.0 / 3.0];
    let numbers = [7i32, -8, i32::MAX, i32::MIN];
    let truths = [true, false, false, true];
    let value = || -> Value {
        (
            Tensor::from_data(TensorData::new(floats.to_vec(), [3, 2]), &host).swap_dims(0, 1),
            Tensor::from_data(TensorData::new(numbers.to_vec(), [4]), &host),
            Some(Tensor::from_data(TensorData::new(truths.to_vec(), [2, 2]), &host)),
        )
    };
    let devices = backend.devices().map_err(failure_of("devices()"))?;
    let mut routes: Vec<Vec<&Device>> = vec![Vec::new()];
    for first in &devices {
        routes.push(vec![first]);
        let others = devices.iter().filter(|second| *second != first);
        routes.extend(others.map(|second| vec![first, second]));
    }
    for route in routes {
        let mut packet = into_packet(value());
        for device in &route {
            packet = backend.receive(packet, device).map_err(failure_of("receive()"))?;
            if let Some(part) = packet.strays(device) {
                return Err(format!(
                    "receive() left {part} elsewhere than on {device:?}, or on the tape"
                ));
            }
        }
        let back = packet.to_device(&host).into_values();
        let (returned_floats, returned_numbers, returned_truths): Value =
            from_parts(back).map_err(failure_of("receive()"))?;
        let found_floats: Vec<u32> =
            returned_floats.swap_dims(0, 1).into_data().iter::<f32>().map(f32::to_bits).collect();
        let found_numbers: Vec<i32> = returned_numbers.into_data().iter::<i32>().collect();
        let found_truths: Option<Vec<bool>> =
            returned_truths.map(|truths| truths.into_data().iter::<bool>().collect());
        let kept = found_floats == floats.map(f32::to_bits);
        if !kept || found_numbers != numbers || found_truths.as_deref() != Some(&truths) {
            return Err(format!(
                "sent over {route:?}, {floats:?}, {numbers:?} and {truths:?} came back as {:?}, \
                 {found_numbers:?} and {found_truths:?}",
                found_floats.into_iter().map(f32::from_bits).collect::<Vec<_>>()
            ));
        }
    }
    Ok(Outcome::Kept)
}

/// A layer that returns random numbers, and has a parameter.
#[derive(Module, Debug)]
struct Noise {
    linear: Linear,
}

impl Layer for Noise {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        context.uniform(&x)
    }
}

/// Checks that [`LayerContext::uniform`] draws the same bits as on Flex.
pub(super) fn draws_the_same_numbers(backend: &Arc<dyn Backend>) -> Verdict {
    let draw = |backend: Arc<dyn Backend>| -> Result<Vec<u32>, String> {
        let model = Sequential::<Tensor<3>>::new()
            .push("noise", |d| Noise { linear: LinearConfig::new(1, 1).init(d) });
        let mut pipeline = Pipeline::builder(model)
            .backend(backend)
            .micro_batches(2)
            .seed(5)
            .build()
            .map_err(failure_of("building"))?;
        let output = pipeline.predict(Tensor::zeros([4, 3, 17], &Device::flex()));
        let output = output.map_err(failure_of("a prediction"))?;
        Ok(output.into_data().iter::<f32>().map(f32::to_bits).collect())
    };
    let (found, expected) = (draw(Arc::clone(backend))?, draw(Arc::new(Reference))?);
    if found == expected {
        Ok(Outcome::Kept)
    } else {
        let wrong = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        Err(format!("{wrong} of {} numbers differ from those drawn on Flex", expected.len()))
    }
}
