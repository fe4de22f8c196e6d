//! A backend that counts what ranks receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stovepipe::burn::tensor::Device;
use stovepipe::{Backend, BackendError, Flex, Packet};

/// Flex, but counts the packets that ranks receive and that are of a kind.
pub struct CountingFlex {
    counts: fn(&Packet) -> bool,
    received: Arc<AtomicUsize>,
}

impl CountingFlex {
    /// Counts the packets for which `counts` returns true. The second value is their number.
    pub fn new(counts: fn(&Packet) -> bool) -> (Self, Arc<AtomicUsize>) {
        let received = Arc::new(AtomicUsize::new(0));
        (Self { counts, received: Arc::clone(&received) }, received)
    }
}

impl Backend for CountingFlex {
    fn name(&self) -> &str {
        "counting"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Flex::new().devices()
    }

    fn receive(&self, packet: Packet, device: &Device) -> Result<Packet, BackendError> {
        self.received.fetch_add(usize::from((self.counts)(&packet)), Ordering::SeqCst);
        Flex::new().receive(packet, device)
    }
}
