//! Plan files: every plan reads back, and nothing that isn't one does harm.

use proptest::prelude::*;
use stovepipe_schedule::{
    Edges, Fault, NamedSchedule, Plan, PlanError, Program, Retention, Schedule, Shape, Stage,
    StageRetention, schedules,
};

fn plans() -> impl Iterator<Item = Plan> {
    schedules().iter().map(NamedSchedule::make).map(|schedule| {
        let shape = Shape::new(3, 7).with_stages_per_rank(schedule.default_stages_per_rank());
        schedule.plan(shape).expect("a plan")
    })
}

#[test]
fn plans_read_back_from_csv_and_json() {
    for plan in plans() {
        let read = |text: &str| Program::read(text, None).map(|program| program.plan().clone());
        assert_eq!(read(&plan.to_csv()).as_ref(), Ok(&plan));
        let json = serde_json::to_string(&plan).expect("serializes");
        assert_eq!(read(&json).as_ref(), Ok(&plan));
        assert_eq!(serde_json::from_str::<Plan>(&json).expect("parses"), plan);
    }
}

#[test]
fn programs_read_back_with_their_messages_skips_and_recomputation() {
    for plan in plans() {
        let s = Stage::new;
        let edges = Edges::chain(plan.stages()).with_skip(s(0), s(2)).expect("a skip");
        let trains = plan.mode() == stovepipe_schedule::Mode::Training;
        let retention = Retention::from_fn(&plan, |stage, m| {
            let drop = trains && (stage.index() + m.index()) % 2 == 0;
            StageRetention::drop_all(usize::from(drop))
        });
        let program = Program::lower(&plan, &edges, &retention).expect("lowers");
        let again = Program::read(&program.to_csv(), None).expect("reads back");
        assert_eq!(again.to_string(), program.to_string());
        assert_eq!(again.edges(), program.edges());
        let json = serde_json::to_string(&program).expect("serializes");
        assert_eq!(Program::read(&json, None).expect("reads back"), again);
    }
}

#[test]
fn other_programs_write_json_otherwise() {
    let program = "0F0,0SEND_F0>2\n1F0\n2RECV_F0<0,2F0";
    let rows = "[[\"0F0\", \"0SEND_F0\\u003e2\"], [\"1F0\"], [\"2RECV_F0\\u003c0\", \"2F0\"]]";
    // Neither has the messages between neighbours.
    let missing = Program::read(program, None).expect_err("messages are missing");
    let escaped = Program::read(&format!("{{\"ranks\": {rows}}}"), None);
    assert_eq!(escaped.expect_err("the same"), missing);
    let plan = "{\"ranks\": [[\"0F0\", \"0B0\"]]}";
    for marked in [format!("\u{feff}{plan}"), "\u{feff}0F0,0B0".to_owned()] {
        assert_eq!(Program::read(&marked, None).expect("a plan").plan().stages(), 1);
    }
}

#[test]
fn compute_only_files_are_lowered() {
    let program = Program::read("0F0,0R0,,,0B0\n,1F0,1B0\n", None).expect("a plan");
    let row: Vec<_> = program.row(0).iter().map(ToString::to_string).collect();
    assert_eq!(row, ["0F0", "0SEND_F0", "0R0", "0RECV_B0", "0B0"]);
}

#[test]
fn what_is_no_plan_is_refused_with_advice() {
    for (text, advice) in [
        ("", "no ranks"),
        ("\n\n", "no ranks"),
        (",,\n0F0", "rank 0 has no action"),
        ("0F0,0B0\n1F0,banana", "rank 1, cell 1: `banana` is not an action"),
        ("{\"ranks\": [[\"0F0\", \"x\"]]}", "rank 0, cell 1"),
        ("{\"ranks\": 3}", "this is no plan: invalid type"),
        ("{\"rank\": []}", "unknown field"),
        ("{", "this is no plan: EOF"),
        ("4294967295SEND_F0", "a number is too large"),
        ("4294967295RECV_B0", "a number is too large"),
        ("4294967296F0", "a number is too large"),
        ("0F0,0I0,0W0,1F0,1I0,1W0", "0I0 waits for 1I0"),
        ("\u{0}\u{1}\u{2}", "is not an action"),
        // Half of the messages: as strict as with compute.
        ("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", "0RECV_B0 is missing"),
        // A skip beyond the last stage.
        ("0F0,0SEND_F0>9,0B0\n1F0,1B0", "a skip goes up"),
    ] {
        let error = Program::read(text, None).expect_err(text).to_string();
        assert!(error.contains(advice), "{text:?}: {error}");
    }
    let rendezvous = "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n\
                      1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1";
    assert!(Program::read(rendezvous, None).is_ok());
    let error = Program::read(rendezvous, Some(0)).expect_err("waits for each other");
    assert!(matches!(error, PlanError::Cell { fault: Fault::Deadlock { .. }, .. }), "{error}");
}

/// Numbers of any size, the largest more often than not.
fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0u32..3).prop_map(|n| u32::MAX - n), 0u32..3]
}

fn kind() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["F", "B", "R", "SEND_F", "RECV_F", "SEND_B", "RECV_B"])
}

/// Text that looks like a plan file more often than not.
#[test]
fn lines_and_cells_at_fault_are_named() {
    let refused = |text: &str| Program::read(text, None).expect_err("refused").to_string();
    let error = refused("0F0,0B0\n\n1F0,1B0\n");
    assert!(error.contains("line 2 is empty"), "{error}");
    let error = refused("\n0F0,0B0\n");
    assert!(error.contains("line 1 is empty"), "{error}");
    // The first of two faults: the action is there twice, and others are missing.
    let error = refused("0F0,0F0,0F1,0F5\n");
    assert!(error.contains("0F0 [0F0] 0F1"), "{error}");
    let error = refused("0F0,0F1,0F5\n");
    assert!(error.contains("[0F2?]"), "{error}");
    // Empty lines at the end are no ranks.
    Program::read("0F0,0B0\n\n\n", None).expect("a plan");
}

fn nearly_csv() -> impl Strategy<Value = String> {
    let cell = prop_oneof![
        8 => (0u32..4, prop::sample::select(vec!["F", "B", "I", "W", "R"]), 0u32..4)
            .prop_map(|(s, k, m)| format!("{s}{k}{m}")),
        2 => (0u32..4, prop::sample::select(vec!["SEND_F", "RECV_F", "SEND_B", "RECV_B"]), 0u32..4)
            .prop_map(|(s, k, m)| format!("{s}{k}{m}")),
        1 => (any_number(), kind(), any_number()).prop_map(|(s, k, m)| format!("{s}{k}{m}")),
        1 => "[ -~]{0,8}",
        1 => Just(String::new()),
        1 => (0u32..9, 0u32..9).prop_map(|(a, b)| format!("{a}SEND_F0>{b}")),
    ];
    let row = prop::collection::vec(cell, 0..12).prop_map(|cells| cells.join(","));
    prop::collection::vec(row, 0..6).prop_map(|rows| rows.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_text_makes_reading_panic(text in prop_oneof![nearly_csv(), ".{0,80}"]) {
        let json = serde_json::json!({"ranks": text.lines().map(|l| l.split(',').collect::<Vec<_>>()).collect::<Vec<_>>()});
        for text in [text, json.to_string()] {
            for in_flight in [None, Some(0)] {
                if let Ok(program) = Program::read(&text, in_flight) {
                    // What is read can be written and read again.
                    let again = Program::read(&program.to_csv(), in_flight);
                    prop_assert_eq!(again.map(|p| p.to_string()), Ok(program.to_string()));
                }
            }
        }
    }
}
