//! Frames that go over a link: everything that a rank does and its peers must know. A frame is a
//! head of fixed size, then as many bytes as the head says.

use std::io::{self, Read, Write};

use stovepipe_transport::{Direction, Tag};

pub(crate) enum Frame {
    Message(Tag, Vec<u8>),
    Gather {
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    },
    Abort {
        step: u64,
        reason: String,
    },
    /// Says by whom the step was aborted and why, if it was: this may come before the other's word.
    End {
        step: u64,
        aborted: Option<(usize, String)>,
    },
}

const FORWARD: u8 = 0;
const BACKWARD: u8 = 1;
const SHARED: u8 = 2;
const GATHER: u8 = 3;
const ABORT: u8 = 4;
const END: u8 = 5;
const ABORTED_END: u8 = 6;

impl Frame {
    /// Writes head and bytes: kind, step, three numbers that depend on the kind, and the length.
    pub(crate) fn write(self, link: &mut impl Write) -> io::Result<()> {
        let (kind, step, numbers, bytes) = match self {
            Self::Message(tag, bytes) => {
                let kind = match tag.direction {
                    Direction::Forward => FORWARD,
                    Direction::Backward => BACKWARD,
                    Direction::Shared => SHARED,
                };
                (kind, tag.step, [tag.micro_batch, tag.from_stage, tag.to_stage], bytes)
            }
            Self::Gather { step, round, bytes } => (GATHER, step, [round, 0, 0], bytes),
            Self::Abort { step, reason } => (ABORT, step, [0; 3], reason.into_bytes()),
            Self::End { step, aborted: None } => (END, step, [0; 3], Vec::new()),
            Self::End { step, aborted: Some((by, reason)) } => {
                (ABORTED_END, step, [by as u32, 0, 0], reason.into_bytes())
            }
        };
        let mut head = vec![kind];
        head.extend(step.to_le_bytes());
        head.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        head.extend((bytes.len() as u64).to_le_bytes());
        link.write_all(&head)?;
        link.write_all(&bytes)
    }

    pub(crate) fn read(link: &mut impl Read) -> io::Result<Self> {
        let [kind] = array(link)?;
        let step = u64::from_le_bytes(array(link)?);
        let mut number = || array(link).map(u32::from_le_bytes);
        let [first, second, third] = [number()?, number()?, number()?];
        let length = u64::from_le_bytes(array(link)?);
        // Grows with what arrives: a wrong length reserves no memory.
        let mut bytes = Vec::new();
        if link.take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = |direction, bytes| {
            let tag =
                Tag { step, micro_batch: first, from_stage: second, to_stage: third, direction };
            Self::Message(tag, bytes)
        };
        Ok(match kind {
            FORWARD => message(Direction::Forward, bytes),
            BACKWARD => message(Direction::Backward, bytes),
            SHARED => message(Direction::Shared, bytes),
            GATHER => Self::Gather { step, round: first, bytes },
            ABORT => Self::Abort { step, reason: String::from_utf8_lossy(&bytes).into_owned() },
            END => Self::End { step, aborted: None },
            ABORTED_END => {
                let reason = String::from_utf8_lossy(&bytes).into_owned();
                Self::End { step, aborted: Some((first as usize, reason)) }
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

fn array<const N: usize>(link: &mut impl Read) -> io::Result<[u8; N]> {
    let mut array = [0; N];
    link.read_exact(&mut array).map(|()| array)
}
