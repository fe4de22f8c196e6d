//! The conformance suite of backends, on the adapters of this machine.

use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor, TensorData};
use stovepipe_burn::Backend;
use stovepipe_burn::conformance::{self, Outcome};
use stovepipe_wgpu::Wgpu;

#[test]
fn wgpu_keeps_the_contract() {
    let findings = conformance::run_all(Wgpu::new()).expect("wgpu keeps it");
    conformance::tell(&findings);
}

/// The only thing that is farther away than rounding; where Burn mends it, the page on this backend
/// is to be changed.
#[test]
fn the_gradient_of_gelu_is_that_of_an_approximation() {
    let gradient = |device: &Device| -> Vec<f64> {
        let values: Vec<f32> = (-40..=40).map(|tenths| tenths as f32 / 10.0).collect();
        let values = TensorData::new(values, [81]);
        let x = Tensor::<1>::from_data(values, &device.clone().autodiff()).require_grad();
        let gradient = x.grad(&gelu(x.clone()).sum().backward()).expect("a gradient");
        gradient.into_data().iter::<f64>().collect()
    };
    let device = Wgpu::new().devices().expect("an adapter").remove(0);
    let (found, exact) = (gradient(&device), gradient(&Device::flex()));
    let distance: f64 = found.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = exact.iter().map(|b| b * b).sum();
    let apart = (distance / norm).sqrt();
    assert!((1e-4..1e-3).contains(&apart), "{apart:.1e}");
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    assert_eq!(conformance::missing_device(Wgpu::adapters([99])), Ok(Outcome::Kept));
    let error = Wgpu::adapters([0, 99]).devices().expect_err("there aren't so many").to_string();
    assert!(error.contains("adapter 99") && error.contains("mesa-vulkan-drivers"), "{error}");
}
