//! The program of the README runs, and what it prints is true.

use std::process::Command;

#[test]
fn the_loss_falls() {
    // Cargo builds it before it runs tests, beside them.
    let here = std::env::current_exe().expect("this program");
    let folder = here.ancestors().nth(2).expect("a folder above");
    let program =
        folder.join("examples/quickstart").with_extension(std::env::consts::EXE_EXTENSION);
    let output = Command::new(program).output().expect("run all tests, or build the example first");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let losses: Vec<f64> =
        said.lines().filter_map(|line| line.split_once("loss ")?.1.parse().ok()).collect();
    assert_eq!(losses.len(), 7, "{said}");
    // From guessing among 26 letters to knowing them, also in messages that it hasn't seen.
    assert!(losses[0] > 3.0 && losses[5] < 0.3 && losses[6] < 0.3, "{said}");
}
