//! Plans, pictures and traces that go through files.

use std::path::PathBuf;

use serde_json::Value;

use crate::command::{file, json, number, refused, text};

#[test]
fn plans_go_through_files() {
    let grid = text("plan --schedule gpipe --ranks 2 --micro-batches 2");
    assert_eq!(grid, "rank 0 | 0F0 0F1  .   .  0B1 0B0\nrank 1 |  .  1F0 1F1 1B1 1B0  .\n");
    for format in ["csv", "json"] {
        let plan = text(&format!(
            "plan --schedule interleaved-1f1b --ranks 4 --micro-batches 8 --format {format}"
        ));
        let path = file(&format!("plan.{format}"), plan.as_bytes());
        let path = path.display();
        let checked = text(&format!("check {path}"));
        assert!(checked.contains("4 ranks, 8 stages, 8 micro-batches, 128 actions"), "{checked}");
        assert_eq!(json(&format!("check {path} --json"))["stages"], 8);
        let found = json(&format!("simulate --plan {path} --forward 1 --backward 2 --json"));
        assert_eq!(number(&found["makespan"]), 28.5);
    }
}

#[test]
fn a_bad_plan_is_shown_with_its_bad_cell() {
    let path = file("bad.csv", b"0F0,0F1,0B0,0I0,0W0\n");
    let error = refused(&format!("check {}", path.display()));
    assert!(error.contains("[0B1?]") && error.contains("rank 0 |"), "{error}");
    // Both neighbours send first.
    let rows = "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n\
                1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n";
    let path = file("rendezvous.csv", rows.as_bytes());
    text(&format!("check {}", path.display()));
    let error = refused(&format!("check {} --in-flight 0", path.display()));
    assert!(error.contains("[0SEND_F1]"), "{error}");
}

#[test]
fn empty_and_binary_files() {
    let noise: Vec<u8> = (0..4000u32).map(|i| (i * 7919 % 256) as u8).collect();
    for (name, content, advice) in [
        ("empty.csv", &b""[..], "no ranks"),
        ("noise.bin", &noise, "it isn't text"),
        ("zeros.bin", &[0; 5000], "is not an action"),
        ("brace.json", b"{", "this is no plan"),
    ] {
        let path = file(name, content);
        let error = refused(&format!("check {}", path.display()));
        assert!(error.contains(advice), "{error}");
        assert!(error.len() < 1000, "{error}");
    }
    assert!(refused("check no/such/file.csv").contains("can't be read"));
}

#[test]
fn plans_from_files_bring_their_own_recomputation() {
    let kept = file("kept.csv", b"0F0,0B0\n");
    let run = format!("simulate --json --plan {}", kept.display());
    assert!(refused(&format!("{run} --recompute 5")).contains("has no R"));
    assert!(refused(&format!("{run} --checkpoint always")).contains("put an R"));
    let placed = file("placed.csv", b"0F0,0R0,0B0\n");
    let run = format!("simulate --json --plan {}", placed.display());
    assert_eq!(number(&json(&format!("{run} --recompute 5"))["makespan"]), 1.0 + 5.0 + 2.0);
}

#[test]
fn absurdly_wide_plans_are_written_without_idle_slots() {
    // Ten thousand ranks: twenty thousand slots on each, two of them used.
    let wide = "plan --schedule gpipe --ranks 10000 --micro-batches 1";
    for format in ["grid", "csv"] {
        let written = text(&format!("{wide} --format {format}"));
        assert_eq!(written.lines().count(), 10_000);
        assert!(written.len() < 500_000, "{}", written.len());
    }
}

#[test]
fn pictures_and_traces() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (svg, trace, sweep) =
        (folder.join("t.svg"), folder.join("t.json"), folder.join("sweep.svg"));
    text(&format!(
        "simulate --schedule zb-v --ranks 2 --micro-batches 4 --svg {} --trace {}",
        svg.display(),
        trace.display()
    ));
    assert!(std::fs::read_to_string(svg).is_ok_and(|svg| svg.contains("<svg")));
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let trace: Value = serde_json::from_str(&trace).expect("json");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 48));
    text(&format!("sweep --ranks 4 --work 32 --overhead 0.5 --svg {}", sweep.display()));
    assert!(std::fs::read_to_string(sweep).is_ok_and(|svg| svg.contains("best: 16")));
}
