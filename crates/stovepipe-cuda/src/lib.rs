//! The CUDA backend: ranks on NVIDIA's graphics processors, through CubeCL.
//!
//! Building it needs no CUDA toolkit; the driver is looked for when devices are listed. Devices are
//! lazy: work is queued, and each rank's thread has a stream of its own.

use std::path::Path;

use burn::tensor::{Device, DeviceType};
use stovepipe_burn::{Backend, BackendError};

/// The file that exists on Linux if NVIDIA's driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// Burn's CUDA backend.
///
/// ```
/// use stovepipe_burn::Backend;
/// use stovepipe_cuda::Cuda;
///
/// assert_eq!(Cuda::new().name(), "cuda");
/// match Cuda::new().devices() {
///     Ok(devices) => println!("{} devices", devices.len()),
///     Err(error) => println!("{error}"), // never a panic where there is no driver
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cuda {
    /// The numbers of the devices, or none for all devices.
    numbers: Option<Vec<usize>>,
}

impl Cuda {
    /// Creates the backend on all CUDA devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the backend on the CUDA devices with these numbers, from 0.
    #[must_use]
    pub fn numbers(numbers: impl Into<Vec<usize>>) -> Self {
        Self { numbers: Some(numbers.into()) }
    }

    fn missing(&self, number: usize, all: &[Device]) -> BackendError {
        let advice = if !all.is_empty() {
            "Ask for devices that there are".to_owned()
        } else if cfg!(target_os = "linux") && !Path::new(DRIVER).exists() {
            format!(
                "NVIDIA's driver isn't loaded: there is no {DRIVER}, and the driver's library \
                 (libcuda.so.1) lists no devices; install the driver on a machine with one of \
                 NVIDIA's graphics processors"
            )
        } else {
            "The driver's library (libcuda.so.1, on Windows nvcuda.dll) is missing or counts no \
             devices: install NVIDIA's driver, and look what `nvidia-smi` lists"
                .to_owned()
        };
        BackendError::NoDevice {
            backend: self.name().to_owned(),
            wanted: format!("CUDA device {number}"),
            found: all.iter().map(|device| format!("{device:?}")).collect(),
            advice,
        }
    }
}

impl Backend for Cuda {
    fn name(&self) -> &str {
        "cuda"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        // Burn looks for the driver before it loads it, and lists no devices where there is
        // none.
        let all = Device::enumerate(DeviceType::Cuda).into_vec();
        let numbers = self.numbers.clone().unwrap_or_else(|| (0..all.len().max(1)).collect());
        let device = |number| all.get(number).cloned().ok_or_else(|| self.missing(number, &all));
        numbers.into_iter().map(device).collect()
    }

    fn device_name(&self, device: &Device) -> String {
        device.identity().map_or_else(|| format!("{device:?}"), |identity| identity.name)
    }

    fn is_lazy(&self) -> bool {
        true
    }

    /// Returns a larger distance than the default.
    ///
    /// On devices that have TF32, Burn multiplies in it, and its mantissa has 10 bits.
    fn precision(&self) -> f64 {
        2e-3
    }
}
