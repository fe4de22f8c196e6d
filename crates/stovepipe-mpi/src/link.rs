//! [`Link`]: the calls into MPI's C interface that `rsmpi`'s safe one can't express, for messages
//! under way that own their buffers. All of it is used from one thread, and this is the only file
//! with unsafe code.
//!
//! MPI's errors end the job, with a message: that is its default, and nothing here changes it. So
//! the codes that the calls return mean nothing.
#![allow(unsafe_code, reason = "MPI is a C interface that keeps pointers into buffers")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};

use crate::frame::{BLOCK, Frame, Tail};

/// A communicator that only this crate uses.
pub(crate) struct Link {
    communicator: SimpleCommunicator,
    /// MPI's type for [`BLOCK`] bytes.
    block: ffi::MPI_Datatype,
}

/// A message that has been announced and not yet received.
pub(crate) struct Announced {
    message: ffi::MPI_Message,
    from: usize,
    blocks: c_int,
}

/// A message under way; MPI reads or writes its buffer.
pub(crate) struct UnderWay {
    request: ffi::MPI_Request,
    /// Empty once it has been taken back.
    buffer: Vec<u8>,
    tail: Option<Tail>,
    peer: usize,
}

/// Fills up the last block after a tail.
static PADDING: [u8; BLOCK] = [0; BLOCK];

impl Link {
    pub(crate) fn new(communicator: SimpleCommunicator) -> Self {
        let mut block = MaybeUninit::uninit();
        // SAFETY: MPI is initialized, as there is a communicator; the call fills `block`.
        let block = unsafe {
            ffi::MPI_Type_contiguous(BLOCK as c_int, ffi::RSMPI_UINT8_T, block.as_mut_ptr());
            ffi::MPI_Type_commit(block.as_mut_ptr());
            block.assume_init()
        };
        Self { communicator, block }
    }

    /// Begins to send a frame.
    pub(crate) fn send(&self, to: usize, frame: Frame) -> UnderWay {
        let padding = frame.padding();
        let Frame { buffer, tail } = frame;
        let mut request = MaybeUninit::uninit();
        let (to_rank, communicator) = (to as c_int, self.communicator.as_raw());
        // SAFETY: the bytes named are those of the buffer, the tail and a static; buffer and tail
        // outlive the request, as `UnderWay` keeps all three, and frees them only when MPI says it
        // is done. Moving the owners doesn't move the bytes, which are on the heap. The calls fill
        // `request`.
        let request = unsafe {
            if let Some(tail) = &tail {
                let mut pieces = Self::pieces(&[&buffer, (**tail).as_ref(), &PADDING[..padding]]);
                // With addresses in the type, the message starts at `MPI_BOTTOM`, which is null.
                let bottom = std::ptr::null();
                ffi::MPI_Isend(bottom, 1, pieces, to_rank, 0, communicator, request.as_mut_ptr());
                // MPI keeps it until the message has been sent.
                ffi::MPI_Type_free(&raw mut pieces);
            } else {
                let (start, blocks) = (buffer.as_ptr().cast(), (buffer.len() / BLOCK) as c_int);
                let block = self.block;
                ffi::MPI_Isend(
                    start,
                    blocks,
                    block,
                    to_rank,
                    0,
                    communicator,
                    request.as_mut_ptr(),
                );
            }
            request.assume_init()
        };
        UnderWay { request, buffer, tail, peer: to }
    }

    /// A type for bytes in several places, given by their addresses.
    fn pieces(places: &[&[u8]]) -> ffi::MPI_Datatype {
        /// MPI counts in 31 bits.
        const LONGEST: usize = 1 << 30;
        let parts: Vec<&[u8]> = places.iter().flat_map(|place| place.chunks(LONGEST)).collect();
        let lengths: Vec<c_int> = parts.iter().map(|part| part.len() as c_int).collect();
        let starts: Vec<ffi::MPI_Aint> =
            parts.iter().map(|part| part.as_ptr().expose_provenance() as ffi::MPI_Aint).collect();
        let count = parts.len() as c_int;
        let mut made = MaybeUninit::uninit();
        // SAFETY: both lists have `count` entries; the calls fill `made`.
        unsafe {
            ffi::MPI_Type_create_hindexed(
                count,
                lengths.as_ptr(),
                starts.as_ptr(),
                ffi::RSMPI_UINT8_T,
                made.as_mut_ptr(),
            );
            ffi::MPI_Type_commit(made.as_mut_ptr());
            made.assume_init()
        }
    }

    /// The next message that has been announced, from any rank.
    pub(crate) fn probe(&self) -> Option<Announced> {
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        let mut found = 0;
        let mut blocks = 0;
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
            ffi::MPI_Get_count(status.as_ptr(), self.block, &raw mut blocks);
            let from = status.assume_init().MPI_SOURCE as usize;
            Some(Announced { message: message.assume_init(), from, blocks })
        }
    }

    /// Begins to receive an announced message into `buffer`, which may hold anything.
    pub(crate) fn receive(&self, announced: Announced, mut buffer: Vec<u8>) -> UnderWay {
        let bytes = announced.bytes();
        let Announced { mut message, from, blocks } = announced;
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let mut request = MaybeUninit::uninit();
        // SAFETY: as for `send`; `message` comes from `probe` and is received once, as it is moved
        // here.
        let request = unsafe {
            ffi::MPI_Imrecv(
                buffer.as_mut_ptr().cast::<c_void>(),
                blocks,
                self.block,
                &raw mut message,
                request.as_mut_ptr(),
            );
            request.assume_init()
        };
        UnderWay { request, buffer, tail: None, peer: from }
    }

    /// Ends the job: all its processes.
    pub(crate) fn abort(&self, status: i32) -> ! {
        self.communicator.abort(status)
    }
}

impl Announced {
    pub(crate) fn bytes(&self) -> usize {
        self.blocks as usize * BLOCK
    }
}

impl UnderWay {
    /// The rank at the other end.
    pub(crate) fn peer(&self) -> usize {
        self.peer
    }

    /// Moves messages on, and says whether this one is done.
    pub(crate) fn is_done(&mut self) -> bool {
        let mut done = 0;
        // SAFETY: the request is this message's own, or null after an earlier call, which is
        // allowed.
        unsafe {
            ffi::MPI_Test(&raw mut self.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE);
        }
        done != 0
    }

    /// The buffer of a message that [is done](Self::is_done).
    pub(crate) fn into_buffer(mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.buffer.is_empty() && !self.is_done() {
            // MPI may still use them.
            std::mem::forget((std::mem::take(&mut self.buffer), self.tail.take()));
        }
    }
}
