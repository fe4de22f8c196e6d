//! Numbers that can't be used, and help.

use crate::command::{refused, text};

#[test]
fn unusable_numbers_are_refused_with_advice() {
    let simulate = "simulate --schedule gpipe --ranks 2 --micro-batches 2";
    for (arguments, advice) in [
        (format!("{simulate} --forward -1"), "finite number"),
        (format!("{simulate} --forward -1,2"), "finite number"),
        (format!("{simulate} --boundary-bytes -1"), "at least 0"),
        (format!("{simulate} --bandwidth -5 --boundary-bytes 0"), "above 0"),
        (format!("{simulate} --bandwidth nan --boundary-bytes 0"), "above 0"),
        (format!("{simulate} --forward nan"), "finite number"),
        (format!("{simulate} --backward inf"), "finite number"),
        (format!("{simulate} --overhead=-1"), "finite number"),
        (format!("{simulate} --forward 1,2,3"), "one for each, or one for all"),
        (format!("{simulate} --forward 1e308 --backward 1e308"), "add up"),
        (format!("{simulate} --backward 1 --weight-grad 2"), "input gradient"),
        (format!("{simulate} --bandwidth 0 --boundary-bytes 8"), "above 0"),
        ("plan --schedule gpipe --ranks 0 --micro-batches 2".into(), "no ranks"),
        ("plan --schedule gpipe --ranks 2 --micro-batches 0".into(), "no micro-batches"),
        ("plan --schedule gpipe --ranks 100000 --micro-batches 100000".into(), "100000000 actions"),
        ("plan --schedule pipedream --ranks 2 --micro-batches 2".into(), "use one of gpipe"),
        ("plan --schedule dualpipe-v --ranks 4 --micro-batches 7".into(), "here 8"),
        ("plan --schedule zb-h1 --ranks 1 --micro-batches 40000000".into(), "100000000 actions"),
        ("compare --ranks 4 --micro-batches 4 --forward 1,2,3".into(), "3 values for 4 ranks"),
        ("partition --costs -1,1 --parts 2".into(), "finite"),
        ("partition --costs 1,2 --parts 3".into(), "use at most 2 stages"),
        ("sweep --ranks 4 --work nan --overhead 1".into(), "finite number"),
        ("compare --ranks 0 --micro-batches 1".into(), "no ranks"),
        ("simulate --json".into(), "--schedule"),
    ] {
        let error = refused(&arguments);
        assert!(error.contains(advice), "{arguments}: {error}");
    }
}

#[test]
fn help_and_completions() {
    let help = text("--help");
    for command in ["plan", "check", "simulate", "compare", "sweep", "partition", "completions"] {
        assert!(help.contains(command), "{help}");
        assert!(text(&format!("{command} --help")).contains("Usage"), "{command}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&format!("completions {shell}")).contains("micro-batches"));
    }
}
