//! Side inputs: values besides the model's input that any layer may ask for by name.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;

use crate::value::boundary::{Boundary, into_packet};
use crate::value::packet::Packet;

/// The way in which a side input is shared among the micro-batches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SideKind {
    /// It has an entry for each sample along its first axis, and is cut like the input.
    PerSample,
    /// It is the same for all samples, and whole for every micro-batch.
    Constant,
}

impl SideKind {
    /// Returns the name of the methods that give such a value and ask for it.
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::PerSample => "side_input",
            Self::Constant => "side_constant",
        }
    }
}

/// A side input of a mini-batch or of a micro-batch.
#[derive(Clone, Debug)]
pub(crate) struct SideValue {
    pub(crate) kind: SideKind,
    packet: Packet,
    /// The copies of a constant on devices. All micro-batches and layers share them, so that it
    /// moves to a device once.
    copies: Arc<Mutex<Vec<(Device, Packet)>>>,
}

/// Side inputs by name.
pub(crate) type SideValues = BTreeMap<String, SideValue>;

impl SideValue {
    fn new(kind: SideKind, packet: Packet) -> Self {
        Self { kind, packet, copies: Arc::default() }
    }

    /// Takes the value off the tape.
    pub(crate) fn detached(self) -> Self {
        Self::new(self.kind, self.packet.detached())
    }

    /// Returns the number of samples, or the reason why the parts have none in common; nothing
    /// for a constant.
    pub(crate) fn samples(&self) -> Option<Result<usize, String>> {
        (self.kind == SideKind::PerSample).then(|| self.packet.samples())
    }

    /// Returns the value for these samples of the mini-batch.
    fn slice(&self, samples: &Range<usize>) -> Self {
        match self.kind {
            SideKind::PerSample => Self::new(self.kind, self.packet.slice(samples)),
            SideKind::Constant => self.clone(),
        }
    }

    /// Returns the value on a device, to which `receive` moves it.
    pub(crate) fn on_device<E>(
        &self,
        device: &Device,
        receive: impl FnOnce(Packet) -> Result<Packet, E>,
    ) -> Result<Packet, E> {
        if self.kind == SideKind::PerSample {
            return receive(self.packet.clone());
        }
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copy)) = copies.iter().find(|(other, _)| other == device) {
            return Ok(copy.clone());
        }
        let copy = receive(self.packet.clone())?;
        copies.push((device.clone(), copy.clone()));
        Ok(copy)
    }
}

impl Hash for SideValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, &self.packet).hash(state);
    }
}

/// Gives a side input a name, and takes the place of what had it.
pub(crate) fn give(
    values: &mut SideValues,
    kind: SideKind,
    name: impl Into<String>,
    value: impl Boundary,
) {
    values.insert(name.into(), SideValue::new(kind, into_packet(value)));
}

/// Returns the side inputs for these samples of the mini-batch.
pub(crate) fn slice_all(values: &SideValues, samples: &Range<usize>) -> SideValues {
    values.iter().map(|(name, value)| (name.clone(), value.slice(samples))).collect()
}
