//! The trait and its small types, apart from any implementation.

use std::sync::Arc;

use futures::executor::block_on;
use stovepipe_transport::{Direction, InProcess, Tag, Transport, TransportError};

const TAG: Tag =
    Tag { step: 3, micro_batch: 1, from_stage: 0, to_stage: 1, direction: Direction::Forward };

#[test]
fn the_trait_is_dyn_compatible() {
    let group: Vec<Arc<dyn Transport<Box<str>>>> = InProcess::group(2)
        .into_iter()
        .map(|endpoint| Arc::new(endpoint) as Arc<dyn Transport<Box<str>>>)
        .collect();
    block_on(group[0].send(1, TAG, "value".into())).expect("a send");
    assert_eq!(block_on(group[1].recv(0, TAG)), Ok("value".into()));
}

#[test]
fn futures_and_endpoints_may_change_threads() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    // A value that is Send but not Sync.
    let group = InProcess::<std::cell::Cell<u8>>::group(2);
    shared(&group);
    drop(send(group[0].send(1, TAG, 1.into())));
    drop(send(group[1].recv(0, TAG)));
    drop(send(group[1].all_gather(0, 0, Vec::new())));
    shared(&TransportError::Ended { step: 0 });
}

#[test]
fn tags_print_all_their_fields() {
    assert_eq!(TAG.to_string(), "step 3, micro-batch 1, stage 0 -> 1, forward");
    let back = Tag { from_stage: 1, to_stage: 0, direction: Direction::Backward, ..TAG };
    assert_eq!(back.to_string(), "step 3, micro-batch 1, stage 1 -> 0, backward");
}

#[test]
fn errors_name_what_they_are_about() {
    let aborted =
        TransportError::Aborted { step: 7, by: 2, reason: "stage 5 panicked".to_string() };
    let text = aborted.to_string();
    for part in ["step 7", "rank 2", "stage 5 panicked"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let text = TransportError::Duplicate { tag: TAG }.to_string();
    assert!(text.contains(&TAG.to_string()), "{text}");
}
