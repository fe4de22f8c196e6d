//! The conformance suite of backends, on the adapters of this machine.

use stovepipe_burn::Backend;
use stovepipe_burn::conformance::{self, Outcome};
use stovepipe_wgpu::Wgpu;

#[test]
fn wgpu_keeps_the_contract() {
    let findings = conformance::run_all(Wgpu::new()).expect("wgpu keeps it");
    conformance::tell(&findings);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    assert_eq!(conformance::missing_device(Wgpu::adapters([99])), Ok(Outcome::Kept));
    let error = Wgpu::adapters([0, 99]).devices().expect_err("there aren't so many").to_string();
    assert!(error.contains("adapter 99") && error.contains("mesa-vulkan-drivers"), "{error}");
}
