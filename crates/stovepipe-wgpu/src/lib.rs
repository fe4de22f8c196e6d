//! The wgpu backend: ranks on the graphics processors that Vulkan, Metal, DirectX 12 or OpenGL
//! offer, or on a software renderer.
//!
//! Devices are found through Vulkan, Metal, DirectX 12 or OpenGL. They are lazy: work is
//! queued, and each rank thread has a stream of its own.

use burn::tensor::{Device, DeviceKind, DeviceType};
use stovepipe_burn::{Backend, BackendError};

/// Burn's wgpu backend.
///
/// ```
/// use stovepipe_burn::Backend;
/// use stovepipe_wgpu::Wgpu;
///
/// assert_eq!(Wgpu::new().name(), "wgpu");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wgpu {
    adapters: Adapters,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Adapters {
    #[default]
    Best,
    Numbered(Vec<usize>),
}

impl Wgpu {
    /// Creates the backend on all graphics processors or, where there is none, on a software
    /// renderer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the backend on the adapters with these numbers, one device each.
    ///
    /// Numbers count from 0 in the order in which wgpu lists adapters, software renderers
    /// included.
    #[must_use]
    pub fn adapters(numbers: impl Into<Vec<usize>>) -> Self {
        Self { adapters: Adapters::Numbered(numbers.into()) }
    }

    fn missing(&self, wanted: String, all: &[Device]) -> BackendError {
        BackendError::NoDevice {
            backend: self.name().to_owned(),
            wanted,
            found: all.iter().map(|device| self.device_name(device)).collect(),
            advice: "Install your graphics processor's Vulkan driver, or Mesa's software renderer \
                     (`apt-get install mesa-vulkan-drivers`), or ask for adapters that there are"
                .to_owned(),
        }
    }
}

impl Backend for Wgpu {
    fn name(&self) -> &str {
        "wgpu"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        let mut all = Device::enumerate(DeviceType::Wgpu).into_vec();
        match &self.adapters {
            Adapters::Numbered(numbers) => {
                let device = |number: &usize| {
                    let device = all.get(*number).cloned();
                    device.ok_or_else(|| self.missing(format!("adapter {number}"), &all))
                };
                numbers.iter().map(device).collect()
            }
            Adapters::Best if all.is_empty() => {
                Err(self.missing("adapter on Vulkan, Metal, DirectX 12 or OpenGL".to_owned(), &all))
            }
            Adapters::Best => {
                let software = Device::wgpu(DeviceKind::Cpu);
                if all.iter().any(|device| *device != software) {
                    all.retain(|device| *device != software);
                }
                Ok(all)
            }
        }
    }

    fn device_name(&self, device: &Device) -> String {
        device.identity().map_or_else(|| format!("{device:?}"), |identity| identity.name)
    }

    fn is_lazy(&self) -> bool {
        true
    }
}
