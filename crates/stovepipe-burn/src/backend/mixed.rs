//! Several backends in one pipeline: each rank runs on the one that it was given.

use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use stovepipe_runtime::RankThread;

use crate::backend::Backend;
use crate::backend::error::BackendError;
use crate::value::packet::Packet;

/// A backend that gives each rank a backend of its own: the first ranks the first one, and so
/// on.
///
/// If the pipeline has more ranks than were given, the others start again from the first.
/// `Mixed` is never deterministic as [`Backend`] means it: the backend that computes a layer
/// depends on where the model is cut.
///
/// A call about a device goes to the backend that the device belongs to. If several backends
/// here have the device, it goes to the first of them.
///
/// ```
/// use stovepipe_burn::{Backend, Mixed};
/// # use burn::tensor::Device;
/// # use stovepipe_burn::BackendError;
/// # struct Flex;
/// # impl Backend for Flex {
/// #     fn name(&self) -> &str { "flex" }
/// #     fn devices(&self) -> Result<Vec<Device>, BackendError> { Ok(vec![Device::flex()]) }
/// # }
/// # type Other = Flex;
/// # #[allow(non_upper_case_globals)]
/// # const Other: Flex = Flex;
///
/// // Rank 0 on one backend, ranks 1 and 2 on another's first two devices.
/// let backend = Mixed::new().ranks(1, Flex).ranks(2, Other);
/// assert_eq!(backend.devices()?.len(), 3);
/// # Ok::<(), BackendError>(())
/// ```
#[derive(Default)]
pub struct Mixed {
    name: String,
    ranks: Vec<MixedRank>,
}

/// A rank with its backend and its device.
struct MixedRank {
    backend: Arc<dyn Backend>,
    /// The number of the device among the backend's.
    number: usize,
    /// The device, and the number of devices that the backend has, once they are known.
    found: OnceLock<(Device, usize)>,
}

impl MixedRank {
    /// Returns the device and the number of devices that the backend has.
    fn found(&self) -> Result<&(Device, usize), BackendError> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let devices = self.backend.devices()?;
        let Some(device) = devices.get(self.number % devices.len().max(1)) else {
            return Err(BackendError::failed(self.backend.name(), "it lists no devices"));
        };
        Ok(self.found.get_or_init(|| (device.clone(), devices.len())))
    }
}

impl Mixed {
    /// Creates a backend without ranks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs the next `count` ranks on `backend`, on its devices in turn.
    #[must_use]
    pub fn ranks(mut self, count: usize, backend: impl Backend + 'static) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(backend);
        if count > 0 {
            self.append_name(backend.name());
        }
        for number in 0..count {
            self.add_rank(Arc::clone(&backend), number);
        }
        self
    }

    /// Runs the next rank on the device with this number of `backend`.
    ///
    /// Numbers count from 0. Numbers in excess start again from the first device.
    #[must_use]
    pub fn rank_on(mut self, number: usize, backend: impl Backend + 'static) -> Self {
        self.append_name(backend.name());
        self.add_rank(Arc::new(backend), number);
        self
    }

    fn append_name(&mut self, name: &str) {
        if !self.name.is_empty() {
            self.name.push(',');
        }
        self.name.push_str(name);
    }

    fn add_rank(&mut self, backend: Arc<dyn Backend>, number: usize) {
        self.ranks.push(MixedRank { backend, number, found: OnceLock::new() });
    }

    /// Returns the backend that a device belongs to.
    fn backend_of(&self, device: &Device) -> Result<&dyn Backend, BackendError> {
        for rank in &self.ranks {
            if rank.found()?.0 == *device {
                return Ok(&*rank.backend);
            }
        }
        Err(BackendError::failed(self.name(), format!("{device:?} is none of its devices")))
    }
}

impl Backend for Mixed {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        if self.ranks.is_empty() {
            return Err(BackendError::failed(
                "mixed",
                "no rank was given a backend: call `.ranks(…)`",
            ));
        }
        self.ranks.iter().map(|rank| Ok(rank.found()?.0.clone())).collect()
    }

    fn device_name(&self, device: &Device) -> String {
        let backend = self.backend_of(device);
        backend.map_or_else(|_| format!("{device:?}"), |backend| backend.device_name(device))
    }

    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        let given = self.ranks.len();
        let mixed_rank = self.ranks.get(rank % given.max(1));
        let mixed_rank = mixed_rank
            .ok_or_else(|| BackendError::failed("mixed", "no rank was given a backend"))?;
        // Ranks in excess have the same devices under other numbers: a multiple of the number
        // of devices is added.
        let offset = rank / given * given * mixed_rank.found()?.1;
        mixed_rank.backend.rank_thread(mixed_rank.number + offset)
    }

    fn flush(&self, device: &Device) -> Result<(), BackendError> {
        self.backend_of(device)?.flush(device)
    }

    fn synchronize(&self, device: &Device) -> Result<(), BackendError> {
        self.backend_of(device)?.synchronize(device)
    }

    fn receive(&self, value: Packet, device: &Device) -> Result<Packet, BackendError> {
        self.backend_of(device)?.receive(value, device)
    }

    fn memory(&self, device: &Device) -> Option<u64> {
        self.backend_of(device).ok()?.memory(device)
    }

    fn is_lazy(&self) -> bool {
        self.ranks.iter().any(|rank| rank.backend.is_lazy())
    }

    fn is_parallel(&self, device: &Device) -> bool {
        self.backend_of(device).is_ok_and(|backend| backend.is_parallel(device))
    }

    /// Returns the distance of the least precise backend.
    fn precision(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.backend.precision()).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use stovepipe_runtime::PlainThread;

    use super::*;

    /// A backend with two devices that differ.
    #[derive(Default)]
    struct TwoDevices {
        /// The ranks that threads were made for.
        asked: Arc<Mutex<Vec<usize>>>,
    }

    impl Backend for TwoDevices {
        fn name(&self) -> &str {
            "two"
        }

        fn devices(&self) -> Result<Vec<Device>, BackendError> {
            Ok(vec![Device::flex(), Device::flex().autodiff()])
        }

        fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
            self.asked.lock().expect("the lock").push(rank);
            Ok(Box::new(PlainThread))
        }
    }

    #[test]
    fn ranks_of_a_backend_have_its_devices_in_turn() {
        let asked = Arc::default();
        let two = || TwoDevices { asked: Arc::clone(&asked) };
        let mixed = Mixed::new().ranks(3, two()).rank_on(1, two()).rank_on(4, two());
        assert_eq!(mixed.name(), "two,two,two");
        let devices = mixed.devices().expect("devices");
        let is_second: Vec<bool> = devices.iter().map(Device::is_autodiff).collect();
        assert_eq!(is_second, [false, true, false, true, false]);
        // The sixth rank starts again from the first, on the same device.
        for rank in 0..6 {
            mixed.rank_thread(rank).expect("a thread");
        }
        assert_eq!(*asked.lock().expect("the lock"), [0, 1, 2, 1, 4, 10]);
    }
}
