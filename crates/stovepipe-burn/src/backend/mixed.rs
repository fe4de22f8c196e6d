//! Several backends in one pipeline: each rank on the one that it was given.

use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use stovepipe_runtime::RankThread;

use crate::backend::Backend;
use crate::backend::error::BackendError;
use crate::value::packet::Packet;

/// Gives each rank a backend of its own: the first ranks the first one, and so on. More ranks than were
/// given start again from the first. Never deterministic as [`Backend`] means it: which backend computes a
/// layer depends on where the model is cut.
///
/// Values and queues are looked after by the backend that a device belongs to; where two backends here have the
/// same device, by the first.
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

/// A rank's backend, the number of its device there, and once they are known the device and how many there are.
struct MixedRank {
    backend: Arc<dyn Backend>,
    number: usize,
    found: OnceLock<(Device, usize)>,
}

impl MixedRank {
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
    /// No ranks yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next `count` ranks run on `backend`, on its devices in turn.
    #[must_use]
    pub fn ranks(mut self, count: usize, backend: impl Backend + 'static) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(backend);
        if count > 0 {
            self.call(backend.name());
        }
        for number in 0..count {
            self.place(Arc::clone(&backend), number);
        }
        self
    }

    /// The next rank runs on the device of this number of `backend`; numbers in excess start again from the
    /// first.
    #[must_use]
    pub fn rank_on(mut self, number: usize, backend: impl Backend + 'static) -> Self {
        self.call(backend.name());
        self.place(Arc::new(backend), number);
        self
    }

    fn call(&mut self, name: &str) {
        if !self.name.is_empty() {
            self.name.push(',');
        }
        self.name.push_str(name);
    }

    fn place(&mut self, backend: Arc<dyn Backend>, number: usize) {
        self.ranks.push(MixedRank { backend, number, found: OnceLock::new() });
    }

    /// The backend that a device belongs to.
    fn of(&self, device: &Device) -> Result<&dyn Backend, BackendError> {
        for place in &self.ranks {
            if place.found()?.0 == *device {
                return Ok(&*place.backend);
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
        self.ranks.iter().map(|place| Ok(place.found()?.0.clone())).collect()
    }

    fn device_name(&self, device: &Device) -> String {
        self.of(device).map_or_else(|_| format!("{device:?}"), |of| of.device_name(device))
    }

    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        let places = self.ranks.len();
        let place = self.ranks.get(rank % places.max(1));
        let place =
            place.ok_or_else(|| BackendError::failed("mixed", "no rank was given a backend"))?;
        // Ranks in excess have the same devices under other numbers.
        let lap = rank / places * places * place.found()?.1;
        place.backend.rank_thread(place.number + lap)
    }

    fn flush(&self, device: &Device) -> Result<(), BackendError> {
        self.of(device)?.flush(device)
    }

    fn synchronize(&self, device: &Device) -> Result<(), BackendError> {
        self.of(device)?.synchronize(device)
    }

    fn receive(&self, value: Packet, device: &Device) -> Result<Packet, BackendError> {
        self.of(device)?.receive(value, device)
    }

    fn memory(&self, device: &Device) -> Option<u64> {
        self.of(device).ok()?.memory(device)
    }

    fn is_lazy(&self) -> bool {
        self.ranks.iter().any(|place| place.backend.is_lazy())
    }

    fn is_parallel(&self, device: &Device) -> bool {
        self.of(device).is_ok_and(|of| of.is_parallel(device))
    }

    /// That of the least precise.
    fn precision(&self) -> f64 {
        self.ranks.iter().map(|place| place.backend.precision()).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use stovepipe_runtime::PlainThread;

    use super::*;

    /// Two devices that can be told apart, and the ranks that hosts were made for.
    #[derive(Default)]
    struct Two {
        hosts: Arc<Mutex<Vec<usize>>>,
    }

    impl Backend for Two {
        fn name(&self) -> &str {
            "two"
        }

        fn devices(&self) -> Result<Vec<Device>, BackendError> {
            Ok(vec![Device::flex(), Device::flex().autodiff()])
        }

        fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
            self.hosts.lock().expect("the lock").push(rank);
            Ok(Box::new(PlainThread))
        }
    }

    #[test]
    fn ranks_of_a_backend_have_its_devices_in_turn() {
        let hosts = Arc::default();
        let two = || Two { hosts: Arc::clone(&hosts) };
        let mixed = Mixed::new().ranks(3, two()).rank_on(1, two()).rank_on(4, two());
        assert_eq!(mixed.name(), "two,two,two");
        let devices = mixed.devices().expect("devices");
        let is_second: Vec<bool> = devices.iter().map(Device::is_autodiff).collect();
        assert_eq!(is_second, [false, true, false, true, false]);
        // The sixth rank starts again from the first, on the same device.
        for rank in 0..6 {
            mixed.rank_thread(rank).expect("a thread");
        }
        assert_eq!(*hosts.lock().expect("the lock"), [0, 1, 2, 1, 4, 10]);
    }
}
