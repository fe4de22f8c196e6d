//! The messages to one peer, and their order: long frames in pieces with a window, so that signs of
//! life, aborts and gathers aren't held up by them for long.
//!
//! A short frame travels at once, as one MPI message. A long one follows those before it: first its
//! head, then its other bytes, never more of them on their way than the window holds. The receiver
//! puts the pieces, which MPI keeps in order, behind each other. One that is cut is ended with an
//! empty message. A frame that says that nothing more comes waits for the long ones before it.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use crate::frame::{self, Address, Frame, HEAD, Head};

/// A longer frame travels in pieces.
const SHORT: usize = 256 << 10;
/// The most bytes of a piece.
const PIECE: usize = 4 << 20;
/// So many bytes of pieces may be on their way to a peer.
const WINDOW: usize = 2 * PIECE;

/// A kind of MPI message. Its number is the message's MPI tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A whole frame.
    Whole = 0,
    /// A piece of a long one.
    Piece = 1,
    /// Nothing: the long frame ends here and isn't wanted.
    Cut = 2,
}

/// A message to be sent.
pub(crate) struct Departure {
    pub(crate) kind: Kind,
    pub(crate) frame: Rc<Frame>,
    pub(crate) bytes: Range<usize>,
}

/// A frame that waits, or of which a part is on its way.
struct Waiting {
    frame: Rc<Frame>,
    sent: usize,
    cut: bool,
}

/// All that waits for one peer.
#[derive(Default)]
pub(crate) struct Outgoing {
    waiting: VecDeque<Waiting>,
    /// The bytes of pieces that are on their way.
    under_way: usize,
}

impl Outgoing {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a frame, and gives it back if it may go at once.
    pub(crate) fn push(&mut self, frame: Frame) -> Option<Departure> {
        let head = frame::read_head(&frame.buffer).map(|address| address.head);
        let is_last = matches!(head, Some(Head::Leave | Head::Bye));
        let (length, frame) = (frame.len(), Rc::new(frame));
        if length <= SHORT && (self.is_empty() || !is_last) {
            return Some(Departure { kind: Kind::Whole, frame, bytes: 0..length });
        }
        self.waiting.push_back(Waiting { frame, sent: 0, cut: false });
        None
    }

    /// The next message that may go.
    pub(crate) fn next(&mut self) -> Option<Departure> {
        let first = self.waiting.front_mut()?;
        let (frame, length) = (Rc::clone(&first.frame), first.frame.len());
        if length <= SHORT {
            self.waiting.pop_front();
            return Some(Departure { kind: Kind::Whole, frame, bytes: 0..length });
        }
        if first.cut {
            self.waiting.pop_front();
            return Some(Departure { kind: Kind::Cut, frame, bytes: 0..0 });
        }
        if self.under_way >= WINDOW {
            return None;
        }
        // No piece is in two places: MPI takes long to collect it.
        let ends = [HEAD, frame.buffer.len(), length];
        let end = ends.into_iter().find(|end| *end > first.sent).unwrap_or(length);
        let end = end.min(first.sent + PIECE);
        let bytes = first.sent..end;
        first.sent = end;
        self.under_way += bytes.len();
        if end == length {
            self.waiting.pop_front();
        }
        Some(Departure { kind: Kind::Piece, frame, bytes })
    }

    /// So many bytes of pieces have arrived.
    pub(crate) fn arrived(&mut self, bytes: usize) {
        self.under_way -= bytes;
    }

    /// The values of a step aren't wanted any more.
    pub(crate) fn cut(&mut self, channel: u32, step: u64) {
        let is_of_step = |frame: &Frame| match frame::read_head(&frame.buffer) {
            Some(Address { channel: of, head: Head::Value(tag) }) => {
                (of, tag.step) == (channel, step)
            }
            _ => false,
        };
        self.waiting.retain_mut(|waiting| {
            let cut = is_of_step(&waiting.frame);
            waiting.cut |= cut;
            !cut || waiting.sent > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use stovepipe_transport::{Direction, Tag};

    use super::*;

    fn tag(step: u64) -> Tag {
        Tag { step, micro_batch: 0, from_stage: 0, to_stage: 1, direction: Direction::Forward }
    }

    fn frame(head: Head, bytes: usize) -> Frame {
        let buffer = frame::begin(Vec::new(), Address { channel: 0, head });
        let payload: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();
        Frame::end(buffer, Some(Box::new(payload)))
    }

    fn bytes(departure: &Departure) -> Vec<u8> {
        departure.frame.places(&departure.bytes).concat()
    }

    #[test]
    fn long_frames_go_in_pieces_within_the_window_and_short_ones_pass_them() {
        let mut outgoing = Outgoing::default();
        let long = frame(Head::Value(tag(1)), 5 * PIECE);
        let whole = long.places(&(0..long.len())).concat();
        assert!(outgoing.push(long).is_none());
        let mut received = Vec::new();
        while received.len() < whole.len() {
            let mut sizes = Vec::new();
            while let Some(piece) = outgoing.next() {
                assert_eq!(piece.kind, Kind::Piece);
                received.extend(bytes(&piece));
                sizes.push(piece.bytes.len());
            }
            assert!(!sizes.is_empty() && sizes.iter().sum::<usize>() < WINDOW + PIECE);
            // Whatever waits: signs of life and aborts go at once.
            for head in [Head::Beat, Head::Abort { step: 1 }, Head::Value(tag(2))] {
                assert!(outgoing.push(frame(head, 3)).is_some_and(|d| d.kind == Kind::Whole));
            }
            sizes.into_iter().for_each(|size| outgoing.arrived(size));
        }
        assert!(received == whole && outgoing.is_empty());
        assert_eq!(frame::length(&received), Some(received.len()));
    }

    #[test]
    fn who_leaves_lets_long_frames_go_first() {
        let mut outgoing = Outgoing::default();
        outgoing.push(frame(Head::Value(tag(1)), PIECE));
        assert!(outgoing.push(frame(Head::Leave, 0)).is_none());
        let kinds: Vec<Kind> = std::iter::from_fn(|| outgoing.next()).map(|d| d.kind).collect();
        assert_eq!(kinds, [Kind::Piece, Kind::Piece, Kind::Whole]);
        assert!(outgoing.push(frame(Head::Bye, 0)).is_some());
    }

    #[test]
    fn values_of_an_aborted_step_are_cut() {
        let mut outgoing = Outgoing::default();
        for step in [1, 1, 2] {
            outgoing.push(frame(Head::Value(tag(step)), 9 * PIECE));
        }
        let begun = outgoing.next().expect("its head");
        outgoing.cut(0, 1);
        // Of the one that was begun the receiver hears that it ends, of the other nothing.
        let cut = outgoing.next().expect("its end");
        assert_eq!((begun.bytes.len(), cut.kind, cut.bytes.len()), (HEAD, Kind::Cut, 0));
        let next = outgoing.next().expect("the next step's");
        let head = frame::read_head(&bytes(&next)).expect("a head").head;
        assert_eq!((next.kind, head), (Kind::Piece, Head::Value(tag(2))));
        outgoing.cut(1, 2);
        assert!(!outgoing.is_empty());
    }
}
