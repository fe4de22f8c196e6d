//! The LibTorch backend: ranks on the processor, each with a number of threads of its own, or on
//! CUDA or MPS devices.
//!
//! It needs LibTorch 2.9.0 when it is built and when it runs; the repository's page on this backend
//! says how to get it. Burn calls its own LibTorch backend deprecated: this crate is where that is
//! known.

use burn::tensor::Device;
use stovepipe_burn::{Backend, BackendError, RankThread};

/// Burn's LibTorch backend.
///
/// ```
/// use stovepipe_burn::Backend;
/// use stovepipe_tch::Tch;
///
/// assert_eq!(Tch::new().threads(2).name(), "tch");
/// assert_eq!(Tch::cuda().name(), "tch-cuda");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tch {
    devices: Devices,
    threads: i32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Devices {
    Processor,
    /// The CUDA devices with these numbers, or all.
    Cuda(Option<Vec<usize>>),
    Mps,
}

impl Tch {
    /// Creates the backend on the processor, with one thread for each rank.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Devices::Processor)
    }

    /// Creates the backend on all CUDA devices.
    #[must_use]
    pub fn cuda() -> Self {
        Self::on(Devices::Cuda(None))
    }

    /// Creates the backend on the CUDA devices with these numbers, from 0.
    #[must_use]
    pub fn cuda_devices(numbers: impl Into<Vec<usize>>) -> Self {
        Self::on(Devices::Cuda(Some(numbers.into())))
    }

    /// Creates the backend on Apple's graphics processor.
    #[must_use]
    pub fn mps() -> Self {
        Self::on(Devices::Mps)
    }

    /// Sets the number of threads with which each rank computes on the processor; 0 counts as
    /// 1.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: i32::try_from(threads.max(1)).unwrap_or(i32::MAX), ..self }
    }

    fn on(devices: Devices) -> Self {
        Self { devices, threads: 1 }
    }

    fn missing(&self, wanted: String, found: Vec<String>, advice: &str) -> BackendError {
        let (backend, advice) = (self.name().to_owned(), advice.to_owned());
        BackendError::NoDevice { backend, wanted, found, advice }
    }
}

impl Default for Tch {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(deprecated, reason = "Burn gives no other way to name LibTorch's devices")]
impl Backend for Tch {
    fn name(&self) -> &str {
        match self.devices {
            Devices::Processor => "tch",
            Devices::Cuda(_) => "tch-cuda",
            Devices::Mps => "tch-mps",
        }
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        match &self.devices {
            Devices::Processor => Ok(vec![Device::libtorch()]),
            Devices::Cuda(numbers) => {
                let count = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
                let numbers = numbers.clone().unwrap_or_else(|| (0..count.max(1)).collect());
                if let Some(missing) = numbers.iter().find(|number| **number >= count) {
                    return Err(self.missing(
                        format!("CUDA device {missing}"),
                        (0..count).map(|number| format!("CUDA device {number}")).collect(),
                        "LibTorch counts the devices: install NVIDIA's driver and a LibTorch \
                         with CUDA, or ask for devices that there are",
                    ));
                }
                Ok(numbers.into_iter().map(Device::libtorch_cuda).collect())
            }
            Devices::Mps if tch::utils::has_mps() => Ok(vec![Device::libtorch_mps()]),
            Devices::Mps => Err(self.missing(
                "MPS device".to_owned(),
                vec!["the processor".to_owned()],
                "MPS needs a Mac with Apple's silicon, and its LibTorch",
            )),
        }
    }

    fn rank_thread(&self, _: usize) -> Result<Box<dyn RankThread>, BackendError> {
        Ok(Box::new(Threads(self.threads)))
    }

    /// Returns true except on the processor.
    fn is_lazy(&self) -> bool {
        self.devices != Devices::Processor
    }

    /// Returns true on the processor.
    fn is_parallel(&self, _: &Device) -> bool {
        self.devices == Devices::Processor
    }

    /// Returns true on the processor.
    fn is_deterministic(&self) -> bool {
        self.devices == Devices::Processor
    }
}

/// The thread of a rank, on which LibTorch's number of threads is set.
struct Threads(i32);

impl RankThread for Threads {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        // LibTorch keeps the number for each calling thread. A thread's first call for its
        // number, or its first operation, takes over the number that any thread set last, even
        // if the thread has set its own by then. So the first call comes before the setting.
        tch::get_num_threads();
        tch::set_num_threads(self.0);
        worker();
    }
}
