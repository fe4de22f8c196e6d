//! Messages from one peer: whole frames, and one long frame in pieces at a time.

use std::collections::VecDeque;

use crate::frame::{self, Address, Head};
use crate::link::{Announced, Incoming, Link};
use crate::outgoing::Kind;
use crate::pool::Pool;

/// A long frame of which pieces are coming.
struct Long {
    incoming: Incoming,
    /// The bytes of all of it, once its head is there.
    length: Option<usize>,
    /// It ends before that, and isn't wanted.
    cut: bool,
}

/// All that comes from one peer.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Messages that are announced and not yet received, in order.
    announced: VecDeque<Announced>,
    whole: VecDeque<Incoming>,
    long: Option<Long>,
}

/// A peer sent what can't be.
#[derive(Debug)]
pub(crate) struct Nonsense;

impl Arrivals {
    /// Whether anything is coming.
    pub(crate) fn is_empty(&self) -> bool {
        self.announced.is_empty() && self.whole.is_empty() && self.long.is_none()
    }

    /// A message is announced.
    pub(crate) fn announce(&mut self, announced: Announced) {
        self.announced.push_back(announced);
    }

    /// Begins to receive what is announced, as far as there is a place for it.
    pub(crate) fn receive(&mut self, link: &Link, pool: &mut Pool) -> Result<(), Nonsense> {
        while let Some(next) = self.announced.pop_front() {
            match (next.kind.ok_or(Nonsense)?, &mut self.long) {
                (Kind::Whole, _) => {
                    let buffer = pool.take(next.bytes);
                    let mut incoming = Incoming::new(buffer, next.bytes);
                    link.receive(next, &mut incoming);
                    self.whole.push_back(incoming);
                }
                (Kind::Piece, None) => {
                    let mut incoming = Incoming::new(Vec::new(), next.bytes);
                    link.receive(next, &mut incoming);
                    self.long = Some(Long { incoming, length: None, cut: false });
                }
                (Kind::Cut, Some(long)) if !long.cut && !long.is_full() => {
                    link.receive(next, &mut long.incoming);
                    long.cut = true;
                }
                (Kind::Piece, Some(long)) if long.takes(next.bytes) => {
                    link.receive(next, &mut long.incoming);
                }
                // Its turn comes when the head is there, or the frame before is done.
                (Kind::Piece | Kind::Cut, Some(long)) if long.has_its_turn() => {
                    self.announced.push_front(next);
                    return Ok(());
                }
                (Kind::Piece | Kind::Cut, _) => return Err(Nonsense),
            }
        }
        Ok(())
    }

    /// Looks what has come: puts the frames that are whole into `come`, and returns whether
    /// anything has moved.
    pub(crate) fn look(
        &mut self,
        pool: &mut Pool,
        come: &mut Vec<Vec<u8>>,
    ) -> Result<bool, Nonsense> {
        let mut moved = false;
        if let Some(mut long) = self.long.take() {
            let (some, all) = long.incoming.look();
            moved |= some;
            match long.length {
                _ if !all => self.long = Some(long),
                _ if long.cut => pool.put(long.incoming.into_buffer()),
                None => {
                    let length = frame::length(long.incoming.come()).ok_or(Nonsense)?;
                    let buffer = pool.take(length);
                    let incoming = Incoming::begun(buffer, length, long.incoming.come());
                    self.long = Some(Long { incoming, length: Some(length), cut: false });
                    moved = true;
                }
                Some(_) if long.is_full() => come.push(long.incoming.into_buffer()),
                Some(_) => self.long = Some(long),
            }
        }
        while let Some(mut first) = self.whole.pop_front() {
            // Whoever leaves has sent everything before.
            let is_last = |bytes: &[u8]| {
                let head = frame::read_head(bytes);
                matches!(head, Some(Address { head: Head::Leave | Head::Bye, .. }))
            };
            if !first.look().1 || (self.long.is_some() && is_last(first.come())) {
                self.whole.push_front(first);
                break;
            }
            come.push(first.into_buffer());
            moved = true;
        }
        Ok(moved)
    }
}

impl Long {
    fn is_full(&self) -> bool {
        self.length == Some(self.incoming.filled())
    }

    /// Whether so many more bytes belong to it.
    fn takes(&self, bytes: usize) -> bool {
        let end = self.incoming.filled() + bytes;
        !self.cut && self.length.is_some_and(|length| end <= length) && bytes > 0
    }

    /// Whether what comes next has to wait for it.
    fn has_its_turn(&self) -> bool {
        self.cut || self.length.is_none_or(|length| length == self.incoming.filled())
    }
}
