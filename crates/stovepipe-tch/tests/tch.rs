//! The conformance suite of backends, on LibTorch.

use std::sync::{Arc, Barrier, mpsc};

use stovepipe_burn::Backend;
use stovepipe_burn::conformance::{self, Outcome};
use stovepipe_tch::Tch;

#[test]
fn libtorch_keeps_the_contract_on_the_processor() {
    for threads in [1, 2] {
        let findings =
            conformance::run_all(Tch::new().threads(threads)).expect("LibTorch keeps it");
        conformance::tell(&findings);
    }
}

#[test]
fn libtorch_keeps_the_contract_on_graphics_processors() {
    for backend in [Tch::cuda(), Tch::mps()] {
        match backend.devices() {
            Ok(_) => {
                let findings = conformance::run_all(backend).expect("LibTorch keeps it");
                conformance::tell(&findings);
            }
            Err(error) => conformance::tell_unchecked(backend.name(), &error),
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    assert_eq!(conformance::missing_device(Tch::cuda_devices([99])), Ok(Outcome::Kept));
    match Tch::mps().devices() {
        Ok(_) => conformance::tell_unchecked("tch-mps", &"its absence, as there is one"),
        Err(_) => assert_eq!(conformance::missing_device(Tch::mps()), Ok(Outcome::Kept)),
    }
    let error = Tch::cuda_devices([99]).devices().expect_err("there aren't so many").to_string();
    assert!(error.contains("CUDA device 99") && error.contains("install"), "{error}");
}

/// LibTorch remembers the number that any thread set last, and a thread that looks at its own for
/// the first time takes over that one.
#[test]
fn each_rank_has_its_own_number_of_threads() {
    let given = [3, 1, 0, 2];
    // No rank looks before all have set theirs.
    let all_are_set = Arc::new(Barrier::new(given.len()));
    let seen = std::thread::scope(|scope| {
        let ranks = given.map(|threads| {
            let rank = Tch::new().threads(threads).rank_thread(0).expect("a thread");
            let (sender, seen) = mpsc::channel();
            let all_are_set = Arc::clone(&all_are_set);
            let look = move || {
                all_are_set.wait();
                sender.send(tch::get_num_threads()).expect("somebody listens");
            };
            scope.spawn(|| rank.run(Box::new(look)));
            seen
        });
        ranks.map(|seen| seen.recv().expect("the rank looked"))
    });
    assert_eq!(seen, [3, 1, 1, 2]);
}
