//! The CUDA backend: ranks on NVIDIA's graphics processors, through CubeCL.
//!
//! Building it needs no CUDA toolkit; the driver is looked for when devices are listed. Devices are
//! lazy: work is queued, and each rank's thread has a stream of its own.

use std::path::Path;

use burn::tensor::{Device, DeviceType};
use stovepipe_burn::{Backend, BackendError};

/// Where Linux shows NVIDIA's driver.
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
    /// These, or all.
    numbers: Option<Vec<usize>>,
}

impl Cuda {
    /// On all CUDA devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// On the CUDA devices of these numbers.
    #[must_use]
    pub fn numbers(numbers: impl Into<Vec<usize>>) -> Self {
        Self { numbers: Some(numbers.into()) }
    }

    fn missing(&self, number: usize, all: &[Device]) -> BackendError {
        let advice = if !all.is_empty() {
            "Ask for devices that there are".to_owned()
        } else if cfg!(target_os = "linux") && !Path::new(DRIVER).exists() {
            format!(
                "Neither the driver's library (libcuda.so.1) nor {DRIVER} is of use here: install \
                 NVIDIA's driver on a machine with one of its graphics processors"
            )
        } else {
            "The driver's library (libcuda.so.1, on Windows nvcuda.dll) is missing or counts no devices: \
             install NVIDIA's driver, and look what `nvidia-smi` lists"
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
        // Looks for the driver before it loads it, and lists nothing where there is none.
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

    /// Burn multiplies in TF32, whose mantissa has 10 bits, on devices that have it.
    fn precision(&self) -> f64 {
        2e-3
    }
}
