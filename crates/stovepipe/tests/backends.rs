//! Several backends in one pipeline: every pair of those that were compiled in and have devices
//! here.

use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::Device;
use stovepipe::prelude::*;
use stovepipe::{BackendError, backend_named, backends, conformance};
use stovepipe_testkit::{batch, toy};

#[test]
fn backends_train_together() {
    let (mut usable, mut pairs) = (Vec::new(), 0);
    for name in backends().iter().map(|named| named.name) {
        match backend_named(name, 1).expect("it is listed").devices() {
            Ok(_) => usable.push(name),
            Err(error) => conformance::tell_unchecked(name, &error),
        }
    }
    for (place, one) in usable.iter().enumerate() {
        for other in &usable[place..] {
            let backend = backend_named(&format!("{one},{other}"), 1).expect("both are listed");
            let findings = conformance::run_all(backend).expect("both keep the contract together");
            conformance::tell(&findings);
            pairs += 1;
        }
    }
    assert!(pairs > 0, "nothing was checked: {:?}", backends());
}

/// `cargo xtask ci` says which backends its machine has: none of them may be skipped in silence.
#[test]
fn backends_that_must_be_there_are() {
    let names = std::env::var("STOVEPIPE_BACKENDS").unwrap_or_default();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let backend = backend_named(name, 1).expect("it is compiled in");
        backend.devices().unwrap_or_else(|error| panic!("{name} must be there: {error}"));
    }
}

#[test]
fn ranks_in_excess_start_again_from_the_first() {
    let backend = backend_named("flex,flex,flex", 1).expect("flex is there");
    assert_eq!(backend.devices().expect("devices").len(), 3);
    let mut pipeline = Pipeline::builder(toy())
        .backend(backend)
        .stages(4)
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-2)
        .loss(CrossEntropy)
        .build()
        .expect("a pipeline of four ranks");
    assert_eq!(pipeline.shared_devices(), [], "each rank has threads of its own");
    let (x, y) = batch(8, 0);
    pipeline.step(x, y).expect("a step");
    let nothing = stovepipe::Mixed::new();
    assert!(nothing.devices().expect_err("no ranks").to_string().contains("`.ranks(…)`"));
}

/// One queue for all ranks.
struct Queue;

impl Backend for Queue {
    fn name(&self) -> &str {
        "queue"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Ok(vec![Device::flex()])
    }
}

#[test]
fn ranks_that_share_a_device_are_told() {
    let shared = |backend: Box<dyn Backend>| {
        let pipeline = Pipeline::builder(toy()).backend(backend).stages(4).build();
        pipeline.expect("a pipeline").shared_devices().to_vec()
    };
    let [queue] = &shared(Box::new(Queue))[..] else { panic!("one device serves all") };
    assert_eq!(queue.ranks.len(), 4);
    assert_eq!(queue.device, Queue.device_name(&Device::flex()));
    assert_eq!(shared(Box::new(Flex::new())), []);
}
