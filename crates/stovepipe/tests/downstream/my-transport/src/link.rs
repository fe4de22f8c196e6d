//! The links of one rank: one TCP connection to each peer, a thread that writes to it and one that
//! reads. Nothing here knows what frames mean to a step.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::frame::Frame;

/// How long a rank tries to reach one that doesn't listen yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connects to all ranks below, accepts all above, and returns the connections by rank.
pub(crate) fn with_all(
    rank: usize,
    listener: &TcpListener,
    addresses: &[SocketAddr],
) -> io::Result<Vec<Option<TcpStream>>> {
    let mut streams: Vec<_> = addresses.iter().map(|_| None).collect();
    for (peer, address) in addresses.iter().enumerate().take(rank) {
        let mut stream = connect(address)?;
        stream.write_all(&(rank as u64).to_le_bytes())?;
        streams[peer] = Some(stream);
    }
    for _ in rank + 1..addresses.len() {
        let (mut stream, from) = listener.accept()?;
        let mut peer = [0; 8];
        stream.read_exact(&mut peer)?;
        let peer = usize::try_from(u64::from_le_bytes(peer)).unwrap_or(usize::MAX);
        match streams.get_mut(peer) {
            Some(place @ None) if peer > rank => *place = Some(stream),
            _ => return Err(io::Error::other(format!("{from} calls itself rank {peer}"))),
        }
    }
    for stream in streams.iter().flatten() {
        stream.set_nodelay(true)?;
    }
    Ok(streams)
}

fn connect(address: &SocketAddr) -> io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Err(_) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            outcome => return outcome,
        }
    }
}

/// A thread that writes the frames it is sent, so that no caller waits for a link. When no more can
/// come, it tells the peer.
pub(crate) fn writer(mut stream: TcpStream) -> (Sender<Frame>, JoinHandle<()>) {
    let (sender, frames): (_, Receiver<Frame>) = channel();
    let write = move || {
        // Of a link that has failed the reader hears too.
        let _ = frames.into_iter().try_for_each(|frame| frame.write(&mut stream));
        let _ = stream.shutdown(Shutdown::Write);
    };
    (sender, thread::spawn(write))
}

/// A thread that hands over what comes, until the link closes or brings what is no frame.
pub(crate) fn reader(mut stream: TcpStream, take: impl Fn(Frame) + Send + 'static) {
    thread::spawn(move || {
        while let Ok(frame) = Frame::read(&mut stream) {
            take(frame);
        }
    });
}
