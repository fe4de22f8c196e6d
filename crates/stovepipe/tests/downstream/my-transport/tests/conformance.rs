//! The transport keeps the contract, and knows of a peer that is gone.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use futures::executor::block_on;
use my_transport::Tcp;
use stovepipe_transport::{Direction, Tag, Transport, TransportError, conformance};

const TAG: Tag =
    Tag { step: 0, micro_batch: 0, from_stage: 1, to_stage: 0, direction: Direction::Backward };

fn group(ranks: usize) -> Vec<Tcp> {
    Tcp::on_one_machine(ranks).expect("links within this machine")
}

#[test]
fn my_transport_keeps_the_contract() {
    conformance::run_all(group).expect("it keeps it");
}

#[test]
fn what_a_rank_sent_outlives_it() {
    let mut group: Vec<Tcp> = group(2);
    let (second, first) = (group.pop().expect("a rank"), group.pop().expect("a rank"));
    block_on(second.send(0, TAG, vec![1, 2, 3])).expect("a send");
    drop(second);
    assert_eq!(block_on(first.recv(1, TAG)), Ok(vec![1, 2, 3]));
    let gone: Result<Vec<u8>, _> = block_on(first.recv(1, Tag { micro_batch: 1, ..TAG }));
    assert_eq!(gone, Err(TransportError::PeerGone { rank: 1 }));
}

#[test]
fn a_peer_that_talks_nonsense_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addresses = [listener.local_addr().expect("an address"); 2];
    let mut peer = TcpStream::connect(addresses[0]).expect("a link");
    peer.write_all(&1u64.to_le_bytes()).expect("a greeting");
    let endpoint = Tcp::join(0, &listener, &addresses).expect("a group of two");
    peer.write_all(&[0xff; 64]).expect("nonsense");
    drop(peer);
    let gone: Result<Vec<u8>, _> = block_on(endpoint.recv(1, TAG));
    assert_eq!(gone, Err(TransportError::PeerGone { rank: 1 }));
}
