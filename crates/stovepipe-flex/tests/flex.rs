//! The conformance suite of backends, on Flex.

use stovepipe_burn::conformance;
use stovepipe_flex::Flex;

#[test]
fn flex_keeps_the_contract() {
    for threads in [1, 2] {
        let findings = conformance::run_all(Flex::new().threads(threads)).expect("Flex keeps it");
        conformance::tell(&findings);
    }
}
