//! Several backends in one pipeline: every pair of those that were compiled in and have devices here.

use stovepipe::prelude::*;
use stovepipe::{BACKENDS, backend_named, conformance};

#[test]
fn backends_train_together() {
    let (mut usable, mut pairs) = (Vec::new(), 0);
    for name in BACKENDS {
        match backend_named(name, 1).expect("it is listed").devices() {
            Ok(_) => usable.push(*name),
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
    assert!(pairs > 0, "nothing was checked: {BACKENDS:?}");
}

#[test]
fn ranks_in_excess_start_again_from_the_first() {
    let devices = |names| backend_named(names, 1).expect("flex is there").devices();
    assert_eq!(devices("flex,flex,flex").expect("devices").len(), 3);
    let nothing = stovepipe::Mixed::new();
    assert!(nothing.devices().expect_err("no ranks").to_string().contains("`.ranks(…)`"));
}
