//! A frame: a head of fixed size, which says everything about the message, and the payload. A short
//! one travels in one MPI message, a long one in [pieces](crate::outgoing).

use std::ops::Range;

use stovepipe_transport::{Direction, Tag};

/// The bytes of a head.
pub(crate) const HEAD: usize = 64;

/// The first part of a message: what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// A value on its way between two stages.
    Value(Tag),
    /// A part of a gather.
    Gather {
        /// The step.
        step: u64,
        /// The round of the step.
        round: u32,
        /// The phase of the round.
        phase: u32,
    },
    /// A rank aborted a step; the payload is the reason.
    Abort {
        /// The step.
        step: u64,
    },
    /// A rank dropped its endpoint; the payload is what it still owes.
    Leave,
    /// A process is alive.
    Beat,
    /// A process will send nothing any more.
    Bye,
}

/// A head with the endpoint that it is for: processes number theirs alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) channel: u32,
    pub(crate) head: Head,
}

/// Begins a frame; the payload is to be appended.
pub(crate) fn begin(mut buffer: Vec<u8>, address: Address) -> Vec<u8> {
    let (kind, step, numbers) = match address.head {
        Head::Value(tag) => {
            let kind = match tag.direction {
                Direction::Forward => 0,
                Direction::Backward => 1,
                Direction::Shared => 7,
            };
            (kind, tag.step, [tag.micro_batch, tag.from_stage, tag.to_stage])
        }
        Head::Gather { step, round, phase } => (2, step, [round, phase, 0]),
        Head::Abort { step } => (3, step, [0; 3]),
        Head::Leave => (4, 0, [0; 3]),
        Head::Beat => (5, 0, [0; 3]),
        Head::Bye => (6, 0, [0; 3]),
    };
    buffer.clear();
    buffer.extend(step.to_le_bytes());
    for number in [kind, address.channel].into_iter().chain(numbers) {
        buffer.extend(number.to_le_bytes());
    }
    buffer.resize(HEAD, 0);
    buffer
}

/// A message ready to be sent: a frame, of which the last part may be elsewhere.
pub(crate) struct Frame {
    pub(crate) buffer: Vec<u8>,
    pub(crate) tail: Option<Tail>,
}

/// Bytes that are sent from where they are.
pub(crate) type Tail = Box<dyn AsRef<[u8]> + Send>;

impl Frame {
    /// Ends a frame: notes how long the payload is.
    pub(crate) fn end(mut buffer: Vec<u8>, tail: Option<Tail>) -> Self {
        let tail = tail.filter(|tail| !(**tail).as_ref().is_empty());
        let behind = tail.as_ref().map_or(0, |tail| (**tail).as_ref().len());
        let length = (buffer.len() - HEAD + behind) as u64;
        buffer[HEAD - 8..HEAD].copy_from_slice(&length.to_le_bytes());
        Self { buffer, tail }
    }

    fn tail(&self) -> &[u8] {
        self.tail.as_ref().map_or(&[], |tail| (**tail).as_ref())
    }

    /// The bytes of head and payload.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len() + self.tail().len()
    }

    /// The two places, of which one may be empty, where these bytes are.
    pub(crate) fn places(&self, bytes: &Range<usize>) -> [&[u8]; 2] {
        let (first, tail) = (self.buffer.len(), self.tail());
        let within = |end: usize, length: usize| end.min(length);
        let start = within(bytes.start, first)..within(bytes.end, first);
        let behind = |at: usize| within(at.saturating_sub(first), tail.len());
        [&self.buffer[start], &tail[behind(bytes.start)..behind(bytes.end)]]
    }
}

/// The bytes of the frame that begins with this head.
pub(crate) fn length(head: &[u8]) -> Option<usize> {
    let (length, _) = head.get(HEAD - 8..HEAD)?.as_chunks::<8>();
    HEAD.checked_add(usize::try_from(u64::from_le_bytes(*length.first()?)).ok()?)
}

/// The address in a head. `None` if it is none.
pub(crate) fn read_head(head: &[u8]) -> Option<Address> {
    let (words, _) = head.get(..HEAD)?.as_chunks::<4>();
    let word = |index: usize| words.get(index).map(|bytes| u32::from_le_bytes(*bytes));
    let step = u64::from(word(0)?) | u64::from(word(1)?) << 32;
    let (kind, channel) = (word(2)?, word(3)?);
    let [first, second, third] = [word(4)?, word(5)?, word(6)?];
    let value = |direction| {
        let (micro_batch, from_stage, to_stage) = (first, second, third);
        Head::Value(Tag { step, micro_batch, from_stage, to_stage, direction })
    };
    let head = match kind {
        0 => value(Direction::Forward),
        1 => value(Direction::Backward),
        2 => Head::Gather { step, round: first, phase: second },
        3 => Head::Abort { step },
        4 => Head::Leave,
        5 => Head::Beat,
        6 => Head::Bye,
        7 => value(Direction::Shared),
        _ => return None,
    };
    Some(Address { channel, head })
}

/// Splits a frame, which may stand in a longer buffer, into address and payload. `None` if it is no
/// frame.
pub(crate) fn read(frame: &[u8]) -> Option<(Address, &[u8])> {
    Some((read_head(frame)?, frame.get(HEAD..length(frame)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back() {
        let tag = Tag {
            step: u64::MAX - 5,
            micro_batch: 1 << 20,
            from_stage: u32::MAX,
            to_stage: 7,
            direction: Direction::Backward,
        };
        let heads = [
            Head::Value(tag),
            Head::Value(Tag { direction: Direction::Forward, ..tag }),
            Head::Value(Tag { direction: Direction::Shared, ..tag }),
            Head::Gather { step: 1 << 40, round: u32::MAX, phase: 9 },
            Head::Abort { step: 3 },
            Head::Leave,
            Head::Beat,
            Head::Bye,
        ];
        for head in heads {
            for length in [0, 1, HEAD, HEAD + 1] {
                let (address, payload) = (Address { channel: 0x0102_0304, head }, vec![7; length]);
                let mut whole = begin(vec![1; 3], address);
                whole.extend(&payload);
                let mut whole = Frame::end(whole, None).buffer;
                assert_eq!(read(&whole), Some((address, &*payload)));
                assert_eq!(super::length(&whole), Some(whole.len()));
                // The same in two places, and in parts of them.
                let tail = Some(Box::new(payload.clone()) as Tail);
                let frame = Frame::end(begin(Vec::new(), address), tail);
                assert_eq!(frame.len(), whole.len());
                for cut in [0, 1, HEAD - 1, HEAD, whole.len()] {
                    let parts = [0..cut, cut..whole.len()];
                    let joined: Vec<u8> =
                        parts.iter().flat_map(|part| frame.places(part).concat()).collect();
                    assert_eq!(joined, whole);
                }
                // A buffer that was used before is longer.
                whole.extend([9; HEAD]);
                assert_eq!(read(&whole), Some((address, &*payload)));
            }
        }
    }

    #[test]
    fn what_is_no_frame_is_not_read() {
        let good = begin(Vec::new(), Address { channel: 0, head: Head::Leave });
        let good = Frame::end(good, None).buffer;
        assert_eq!(read(&good[..HEAD - 1]), None);
        let mut long = good.clone();
        long[HEAD - 8] = 1;
        assert_eq!(read(&long), None);
        let mut unknown = good;
        unknown[8] = 8;
        assert_eq!(read(&unknown), None);
    }
}
