//! [`Link`]: the calls into MPI's C interface that `rsmpi`'s safe one can't express, for messages
//! under way that own their buffers. All of it is used from one thread at a time, and this is the
//! only file with unsafe code.
//!
//! MPI's errors end the job, with a message: that is its default, and nothing here changes it. So
//! the codes that the calls return mean nothing.
#![allow(unsafe_code, reason = "MPI is a C interface that keeps pointers into buffers")]

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::rc::Rc;

use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};

use crate::frame::Frame;
use crate::outgoing::{Departure, Kind};

/// A communicator that only this crate uses.
pub(crate) struct Link {
    communicator: SimpleCommunicator,
    /// How many of its processes are on this machine.
    neighbours: usize,
}

// SAFETY: a communicator is a handle that any thread may use. Calls come from one thread at a time,
// because a link has one owner; whoever moves it to another thread has asked MPI for calls from
// several.
unsafe impl Send for Link {}

/// A message that has been announced and not yet received.
pub(crate) struct Announced {
    message: ffi::MPI_Message,
    /// None if no message of this crate has such a tag.
    pub(crate) kind: Option<Kind>,
    pub(crate) from: usize,
    pub(crate) bytes: usize,
}

/// A message on its way to a peer; MPI reads its bytes.
pub(crate) struct Sending {
    request: ffi::MPI_Request,
    /// None once it has been taken back.
    frame: Option<Rc<Frame>>,
    pub(crate) to: usize,
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
}

/// A frame on its way from a peer, in one message or several; MPI writes its bytes.
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    /// How much of the buffer messages have been announced for.
    filled: usize,
    requests: VecDeque<ffi::MPI_Request>,
}

impl Link {
    /// All processes of the communicator have to make one.
    pub(crate) fn new(communicator: SimpleCommunicator) -> Self {
        let neighbours = communicator.split_shared(communicator.rank()).size() as usize;
        Self { communicator, neighbours }
    }

    /// How many of its processes are on this machine.
    pub(crate) fn neighbours(&self) -> usize {
        self.neighbours
    }

    /// This process's number in the communicator, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.communicator.rank() as usize, self.communicator.size() as usize)
    }

    /// Begins to send a message.
    pub(crate) fn send(&self, to: usize, departure: Departure) -> Sending {
        let Departure { kind, frame, bytes } = departure;
        let [first, second] = frame.places(&bytes);
        let mut request = MaybeUninit::uninit();
        let (to_rank, tag, communicator) = (to as c_int, kind as c_int, self.communicator.as_raw());
        // SAFETY: the bytes named are those of the frame's buffer and tail, which outlive the
        // request, as `Sending` keeps the frame and frees it only when MPI says it is done. Moving
        // their owner doesn't move the bytes, which are on the heap. The calls fill `request`.
        let request = unsafe {
            if first.is_empty() || second.is_empty() {
                let place = if first.is_empty() { second } else { first };
                ffi::MPI_Isend(
                    place.as_ptr().cast(),
                    place.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    to_rank,
                    tag,
                    communicator,
                    request.as_mut_ptr(),
                );
            } else {
                let mut places = Self::places([first, second]);
                // With addresses in the type, the message starts at `MPI_BOTTOM`, which is null.
                let bottom = std::ptr::null();
                ffi::MPI_Isend(bottom, 1, places, to_rank, tag, communicator, request.as_mut_ptr());
                // MPI keeps it until the message has been sent.
                ffi::MPI_Type_free(&raw mut places);
            }
            request.assume_init()
        };
        Sending { request, frame: Some(frame), to, kind, bytes: bytes.len() }
    }

    /// A type for bytes in two places, given by their addresses. A message is far shorter than the
    /// 31 bits in which MPI counts.
    fn places(places: [&[u8]; 2]) -> ffi::MPI_Datatype {
        let lengths = places.map(|place| place.len() as c_int);
        let starts = places.map(|place| place.as_ptr().expose_provenance() as ffi::MPI_Aint);
        let mut made = MaybeUninit::uninit();
        // SAFETY: both lists have two entries; the calls fill `made`.
        unsafe {
            ffi::MPI_Type_create_hindexed(
                2,
                lengths.as_ptr(),
                starts.as_ptr(),
                ffi::RSMPI_UINT8_T,
                made.as_mut_ptr(),
            );
            ffi::MPI_Type_commit(made.as_mut_ptr());
            made.assume_init()
        }
    }

    /// The next message that has been announced, from any rank. Those of one rank come in the order
    /// in which they were sent.
    pub(crate) fn probe(&self) -> Option<Announced> {
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        let mut found = 0;
        let mut bytes = 0;
        // SAFETY: the calls fill what is read: message and status only if a message was found.
        unsafe {
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                ffi::RSMPI_ANY_TAG,
                self.communicator.as_raw(),
                &raw mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            );
            if found == 0 {
                return None;
            }
            ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &raw mut bytes);
            let status = status.assume_init();
            let kinds = [Kind::Whole, Kind::Piece, Kind::Cut];
            Some(Announced {
                message: message.assume_init(),
                kind: kinds.into_iter().find(|kind| *kind as c_int == status.MPI_TAG),
                from: status.MPI_SOURCE as usize,
                bytes: usize::try_from(bytes).unwrap_or(0),
            })
        }
    }

    /// Begins to receive an announced message behind what has come of a frame. Its buffer must have
    /// room.
    pub(crate) fn receive(&self, announced: Announced, into: &mut Incoming) {
        let Announced { mut message, bytes, .. } = announced;
        let place = &mut into.buffer[into.filled..into.filled + bytes];
        let mut request = MaybeUninit::uninit();
        // SAFETY: as for `send`: the buffer is neither moved nor freed while `into` has a request;
        // `message` comes from `probe` and is received once, as it is moved here.
        let request = unsafe {
            ffi::MPI_Imrecv(
                place.as_mut_ptr().cast::<c_void>(),
                bytes as c_int,
                ffi::RSMPI_UINT8_T,
                &raw mut message,
                request.as_mut_ptr(),
            );
            request.assume_init()
        };
        into.filled += bytes;
        into.requests.push_back(request);
    }

    /// Ends the job: all its processes.
    pub(crate) fn abort(&self, status: i32) -> ! {
        self.communicator.abort(status)
    }
}

/// Moves messages on, and says whether this one is done.
fn is_done(request: &mut ffi::MPI_Request) -> bool {
    let mut done = 0;
    // SAFETY: the request is a message's own, or null after an earlier call, which is allowed.
    unsafe {
        ffi::MPI_Test(request, &raw mut done, ffi::RSMPI_STATUS_IGNORE);
    }
    done != 0
}

impl Sending {
    pub(crate) fn is_done(&mut self) -> bool {
        is_done(&mut self.request)
    }

    /// The buffer of a message that [is done](Self::is_done), if no other piece of its frame needs
    /// it.
    pub(crate) fn into_buffer(mut self) -> Option<Vec<u8>> {
        self.frame.take().and_then(Rc::into_inner).map(|frame| frame.buffer)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let frame = self.frame.take();
        if frame.is_some() && !self.is_done() {
            // MPI may still read it.
            std::mem::forget(frame);
        }
    }
}

impl Incoming {
    /// For a frame of so many bytes, in a buffer that may hold anything.
    pub(crate) fn new(mut buffer: Vec<u8>, bytes: usize) -> Self {
        buffer.resize(buffer.len().max(bytes), 0);
        Self { buffer, filled: 0, requests: VecDeque::new() }
    }

    /// For a longer frame of so many bytes, of which these have come.
    pub(crate) fn begun(buffer: Vec<u8>, bytes: usize, come: &[u8]) -> Self {
        let mut incoming = Self::new(buffer, bytes);
        incoming.buffer[..come.len()].copy_from_slice(come);
        incoming.filled = come.len();
        incoming
    }

    /// How many bytes have come, or are coming.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Forgets the messages that have come. Returns whether some have, and whether all have.
    pub(crate) fn look(&mut self) -> (bool, bool) {
        let before = self.requests.len();
        while self.requests.front_mut().is_some_and(is_done) {
            self.requests.pop_front();
        }
        (self.requests.len() < before, self.requests.is_empty())
    }

    /// The bytes that have come, once all have.
    pub(crate) fn come(&self) -> &[u8] {
        if self.requests.is_empty() { &self.buffer[..self.filled] } else { &[] }
    }

    /// The buffer, once all have come.
    pub(crate) fn into_buffer(mut self) -> Vec<u8> {
        if self.requests.is_empty() { std::mem::take(&mut self.buffer) } else { Vec::new() }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.look().1 {
            // MPI may still write into it.
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}
