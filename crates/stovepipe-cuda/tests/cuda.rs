//! The conformance suite of backends where there are CUDA devices, and what holds without any.

use stovepipe_burn::conformance::{self, Outcome};
use stovepipe_burn::{Backend, BackendError};
use stovepipe_cuda::Cuda;

#[test]
fn cuda_keeps_the_contract_where_there_are_devices() {
    match Cuda::new().devices() {
        Ok(_) => {
            let findings = conformance::run_all(Cuda::new()).expect("CUDA keeps it");
            conformance::tell(&findings);
        }
        Err(error) => conformance::tell_unchecked("cuda", &error),
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    assert_eq!(conformance::missing_device(Cuda::numbers([99])), Ok(Outcome::Kept));
    let error = Cuda::numbers([99]).devices().expect_err("there aren't so many");
    assert!(error.to_string().contains("CUDA device 99"), "{error}");
}

#[test]
fn without_a_driver_the_error_says_what_was_looked_for() {
    let Err(BackendError::NoDevice { found, advice, .. }) = Cuda::new().devices() else {
        conformance::tell_unchecked("cuda", &"an error without a driver, where there are devices");
        return;
    };
    assert!(found.is_empty(), "{found:?}");
    assert!(advice.contains("libcuda.so.1") && advice.contains("install"), "{advice}");
}
