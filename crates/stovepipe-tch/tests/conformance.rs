//! The conformance suite of backends, on LibTorch.

use stovepipe_burn::Backend;
use stovepipe_burn::conformance::{self, Outcome};
use stovepipe_tch::Tch;

#[test]
fn libtorch_keeps_the_contract_on_the_processor() {
    for threads in [1, 2] {
        let findings =
            conformance::run_all(Tch::new().threads(threads)).expect("LibTorch keeps it");
        findings.iter().for_each(|finding| println!("{finding}"));
    }
}

#[test]
fn libtorch_keeps_the_contract_on_cuda_devices() {
    match Tch::cuda().devices() {
        Ok(_) => {
            let findings = conformance::run_all(Tch::cuda()).expect("LibTorch keeps it");
            findings.iter().for_each(|finding| println!("{finding}"));
        }
        Err(error) => println!("tch-cuda: NOT CHECKED: {error}"),
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    for backend in [Tch::cuda_devices([99]), Tch::mps()] {
        // On a Mac there is one.
        if cfg!(target_os = "macos") && backend == Tch::mps() {
            continue;
        }
        assert_eq!(conformance::missing_device(backend), Ok(Outcome::Kept));
    }
    let error = Tch::cuda_devices([99]).devices().expect_err("there aren't so many").to_string();
    assert!(error.contains("CUDA device 99") && error.contains("install"), "{error}");
}
