//! Packets, which travel between layers and stages: the parts of a value or of its gradients.

use std::fmt;
use std::ops::Range;

use burn::tensor::Device;

use crate::value::part::{Absent, Part};

/// A value that travels along an edge: the tensors of one boundary value, or their gradients.
///
/// A part without a gradient travels as an explicit nothing, so that programs don't depend on
/// it.
///
/// The [`Transport`](stovepipe_transport::Transport) of a pipeline moves packets. A transport
/// between processes encodes them through [`Wire`](stovepipe_transport::Wire).
pub struct Packet {
    parts: Vec<Option<Box<dyn Part>>>,
    /// The numbers of parts of several values that travel together; empty for a single value.
    sections: Vec<usize>,
}

impl Packet {
    pub(crate) fn sections(&self) -> &[usize] {
        &self.sections
    }

    pub(crate) fn parts(&self) -> &[Option<Box<dyn Part>>] {
        &self.parts
    }

    /// Takes the packet apart into its parts and its sections.
    pub(crate) fn into_pieces(self) -> (Vec<Option<Box<dyn Part>>>, Vec<usize>) {
        (self.parts, self.sections)
    }

    /// Makes a packet of parts and sections, or returns `None` if they don't fit each other.
    pub(crate) fn from_pieces(
        parts: Vec<Option<Box<dyn Part>>>,
        sections: Vec<usize>,
    ) -> Option<Self> {
        let sum = sections.iter().try_fold(0usize, |sum, section| sum.checked_add(*section));
        (sections.is_empty() || sum == Some(parts.len())).then_some(Self { parts, sections })
    }

    pub(crate) fn of(parts: Vec<Box<dyn Part>>) -> Self {
        Self { parts: parts.into_iter().map(Some).collect(), sections: Vec::new() }
    }

    pub(crate) fn gradients(parts: Vec<Option<Box<dyn Part>>>) -> Self {
        Self { parts, sections: Vec::new() }
    }

    /// Copies the values to memory of their own.
    pub(crate) fn duplicate(&self) -> Self {
        let parts = self.parts.iter().map(|part| part.as_ref().map(|part| part.duplicate()));
        Self { parts: parts.collect(), sections: self.sections.clone() }
    }

    /// Returns a packet of the shape that the values' gradients have.
    ///
    /// Float parts stand for their own gradients; other parts have none.
    pub(crate) fn as_gradients(&self) -> Self {
        let parts = self.parts.iter().flatten().map(|part| part.clone_box());
        let gradients = parts.map(|part| part.clone_box().leaf().is_tracked().then_some(part));
        Self { parts: gradients.collect(), sections: self.sections.clone() }
    }

    /// Makes one packet of several values, which travel together.
    pub(crate) fn join(packets: Vec<Self>) -> Self {
        let sections = packets.iter().map(|packet| packet.parts.len()).collect();
        let parts = packets.into_iter().flat_map(|packet| packet.parts).collect();
        Self { parts, sections }
    }

    /// Takes the values apart that were joined.
    pub(crate) fn split(self) -> Vec<Self> {
        if self.sections.is_empty() {
            return vec![self];
        }
        let mut parts = self.parts.into_iter();
        let sections = self.sections.iter();
        sections.map(|&count| Self::gradients(parts.by_ref().take(count).collect())).collect()
    }

    pub(crate) fn into_gradients(self) -> Vec<Option<Box<dyn Part>>> {
        self.parts
    }

    /// Returns the parts that aren't nothing: of a value, all of them.
    pub(crate) fn into_values(self) -> Vec<Box<dyn Part>> {
        self.parts.into_iter().flatten().collect()
    }

    /// Returns the number of samples along the first axis, or the reason why the parts have
    /// none in common.
    pub(crate) fn samples(&self) -> Result<usize, String> {
        let present = self.parts.iter().flatten().filter(|p| !p.as_any().is::<Absent>());
        let mut sizes = present.map(|p| (p.shape().first().copied(), p.describe()));
        let Some((Some(samples), first)) = sizes.next() else {
            return Err("it holds no tensor with a batch axis".to_owned());
        };
        match sizes.find(|(size, _)| *size != Some(samples)) {
            Some((_, other)) => Err(format!("{first} and {other} disagree about the batch axis")),
            None => Ok(samples),
        }
    }

    /// Returns a contiguous piece of every part along the first axis.
    pub(crate) fn slice(&self, range: &Range<usize>) -> Self {
        Self::of(self.parts.iter().flatten().map(|part| part.slice(range.clone())).collect())
    }

    /// Moves the value to `device`, off the tape and contiguous.
    ///
    /// Between devices of different kinds it goes through the host, and whole numbers and
    /// truth values take the types that `device` computes with.
    #[must_use]
    pub fn to_device(self, device: &Device) -> Self {
        let detach_to = |part: Option<Box<dyn Part>>| part.map(|part| part.detach_to(Some(device)));
        Self { parts: self.parts.into_iter().map(detach_to).collect(), sections: self.sections }
    }

    /// Takes the value off the tape, and makes it contiguous.
    #[must_use]
    pub(crate) fn detached(self) -> Self {
        let detach = |part: Option<Box<dyn Part>>| part.map(|part| part.detach_to(None));
        Self { parts: self.parts.into_iter().map(detach).collect(), sections: self.sections }
    }

    /// Describes a part that isn't on this device, if there is one.
    pub(crate) fn strays(&self, device: &Device) -> Option<String> {
        let part = self.parts.iter().flatten().find(|part| !part.is_on(device))?;
        Some(part.describe())
    }

    /// Joins packets of the same types along the first axis, or returns `None` if one differs.
    pub(crate) fn concat(packets: Vec<Self>) -> Option<Self> {
        let mut packets = packets.into_iter().map(Self::into_values);
        let first = packets.next()?;
        let mut columns: Vec<Vec<Box<dyn Part>>> = first.iter().map(|_| Vec::new()).collect();
        for packet in packets {
            if packet.len() != columns.len() {
                return None;
            }
            for (column, part) in columns.iter_mut().zip(packet) {
                column.push(part);
            }
        }
        let joined = first.iter().zip(columns).map(|(head, rest)| head.concat(rest));
        joined.collect::<Option<Vec<_>>>().map(Self::of)
    }
}

impl Clone for Packet {
    fn clone(&self) -> Self {
        let parts = self.parts.iter().map(|p| p.as_ref().map(|p| p.clone_box())).collect();
        Self { parts, sections: self.sections.clone() }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            self.parts.iter().map(|p| p.as_ref().map_or("nothing".to_owned(), |p| p.describe()));
        f.debug_list().entries(parts).finish()
    }
}
