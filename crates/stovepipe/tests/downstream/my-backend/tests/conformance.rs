//! The backend keeps the contract.

use my_backend::DeepStacks;
use stovepipe_burn::conformance::{self, Outcome};

#[test]
fn my_backend_keeps_the_contract() {
    for ranks in [1, 2] {
        let findings = conformance::run_all(DeepStacks { ranks }).expect("it keeps it");
        assert!(
            findings.iter().any(|f| f.check == "repeats_every_bit" && f.outcome == Outcome::Kept)
        );
    }
    assert_eq!(conformance::missing_device(DeepStacks { ranks: 0 }), Ok(Outcome::Kept));
}
