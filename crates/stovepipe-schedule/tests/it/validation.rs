//! Plans and programs that must be refused, each with its grid and the bad cell in brackets.

use stovepipe_schedule::{Edges, Fault, Plan, PlanError, Program, Stage};

fn plan(rows: &[&str]) -> Result<Plan, PlanError> {
    Plan::parse(rows.iter().map(|row| row.split_whitespace()))
}

fn program(rows: &[&str], in_flight: Option<usize>) -> Result<Program, PlanError> {
    let rows = rows.iter().map(|row| row.split_whitespace());
    Program::parse(rows, |stages| Ok(Edges::chain(stages)), in_flight)
}

/// The fault, and the message, which must show the grid with `cell` in brackets.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, PlanError>, cell: &str) -> (Fault, String) {
    let error = result.expect_err("must be refused");
    let message = error.to_string();
    assert!(message.contains(&format!("[{cell}]")), "no [{cell}] in:\n{message}");
    assert!(message.contains(" |"), "no grid in:\n{message}");
    match error {
        PlanError::Cell { fault, .. } => (fault, message),
        other => panic!("not about a cell: {other}"),
    }
}

#[test]
fn plans_that_can_run_are_accepted() {
    for rows in [
        &["0F0 0B0"][..],
        &["0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"],
        &["0F0 0I0 0W0", "1F0 1B0"],
        &["0F0 0R0 0B0"],
        &["0F0 0F1", "1F0 1F1"],
        // Two stages on a rank.
        &["0F0 2F0 2B0 0B0", "1F0 1B0"],
    ] {
        assert!(plan(rows).is_ok(), "{rows:?}");
    }
}

#[test]
fn counts_actions_as_a_multiset() {
    // Two micro-batches; as many actions as needed, but one micro-batch has both kinds of backward
    // and the other has none.
    let (fault, _) = refused(plan(&["0F0 0F1 0B0 0I0 0W0"]), "0B1?");
    assert!(matches!(fault, Fault::Missing(_)), "{fault}");
}

#[test]
fn missing_actions_are_named() {
    for (rows, cell) in [
        (&["0F0 0F1 0B0", "1F0 1F1 1B0 1B1"][..], "0B1?"),
        (&["0F0 0B0 0B1", "1F0 1F1 1B0 1B1"], "0F1?"),
        // Nothing at all of stage 1 and micro-batch 1.
        (&["0F0 0F1 0B0 0B1", "1F0 1B0"], "1F1?"),
        (&["0F0 0I0"], "0W0?"),
        (&["0F0 0W0"], "0I0?"),
        // A stage number far too high must not make a table of that size.
        (&["0F0 4000000000F0"], "1F0?"),
        (&["0F0 0F4000000000"], "0F1?"),
    ] {
        let (fault, _) = refused(plan(rows), cell);
        assert!(matches!(fault, Fault::Missing(_)), "{fault}");
    }
}

#[test]
fn doubled_and_misplaced_actions_are_refused() {
    let (fault, _) = refused(plan(&["0F0 0B0 0F0"]), "0F0");
    assert!(matches!(fault, Fault::Doubled(_)), "{fault}");
    let (fault, _) = refused(plan(&["0F0 0R0 0R0 0B0"]), "0R0");
    assert!(matches!(fault, Fault::Doubled(_)), "{fault}");
    for (row, cell) in
        [("0B0 0F0", "0B0"), ("0F0 0B0 0R0", "0B0"), ("0R0 0F0 0B0", "0R0"), ("0F0 0W0 0I0", "0W0")]
    {
        let (fault, _) = refused(plan(&[row]), cell);
        assert!(matches!(fault, Fault::OutOfOrder { .. }), "{fault}");
    }
    let (fault, _) = refused(plan(&["0F0 0B0 1B0", "1F0"]), "1F0");
    assert!(matches!(fault, Fault::WrongRank { .. }), "{fault}");
    let (fault, _) = refused(plan(&["0F0 0B0 0I0 0W0"]), "0I0");
    assert!(matches!(fault, Fault::Unneeded(..)), "{fault}");
    let (fault, _) = refused(plan(&["0F0 0R0"]), "0R0");
    assert!(matches!(fault, Fault::Unneeded(..)), "{fault}");
}

#[test]
fn a_cycle_is_refused() {
    // Rank 0 wants the gradient of micro-batch 0 before it sends micro-batch 1; rank 1 the other
    // way.
    let rows = &["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"];
    let (fault, message) = refused(plan(rows), "0B0");
    assert!(matches!(fault, Fault::Deadlock { .. }), "{fault}");
    assert!(
        message.contains("on rank 0 0B0 waits for 1B0, on rank 1 1F1 waits for 0F1"),
        "{message}"
    );
}

#[test]
fn a_deadlock_through_communication_is_refused() {
    // Both neighbours send first over a rendezvous channel.
    let rows = &[
        "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2RECV_F1 2F1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1",
    ];
    let (fault, message) = refused(program(rows, Some(0)), "0SEND_F1");
    assert!(matches!(fault, Fault::Deadlock { .. }), "{fault}");
    assert!(message.contains("0SEND_F1 waits for 1RECV_F1"), "{message}");
    assert!(message.contains("1SEND_F0 waits for 2RECV_F0"), "{message}");
    // With one message on its way the same program runs.
    let program = program(rows, Some(1)).expect("runs");
    assert!(program.check_in_flight(0).is_err());
}

#[test]
fn messages_are_checked_as_strictly_as_compute() {
    let good = ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"];
    assert!(program(&good, Some(0)).is_ok());
    for (rows, cell) in [
        (["0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"], "0SEND_F0?"),
        (["0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1B0 1SEND_B0"], "1RECV_F0?"),
        (["0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"], "0SEND_F0"),
        (["0SEND_F0 0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"], "0SEND_F0"),
        (["0F0 0SEND_F0 0B0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0"], "0B0"),
        // Not along an edge.
        (["0F0 0SEND_F0 0SEND_F0>2 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"], "0SEND_F0>2"),
        // On the wrong rank.
        (["0F0 0SEND_F0 0RECV_B0 0B0 1RECV_F0", "1F0 1B0 1SEND_B0"], "1RECV_F0"),
    ] {
        refused(program(&rows, None), cell);
    }
}

#[test]
fn large_grids_are_cut_around_the_bad_cell() {
    let row = |stage: usize| -> Vec<String> {
        let forward = (0..500).map(|m| format!("{stage}F{m}"));
        forward.chain((0..500).rev().map(|m| format!("{stage}B{m}"))).collect()
    };
    let mut rows: Vec<Vec<String>> = (0..64).map(row).collect();
    rows[40][300] = "40F299".to_owned();
    let result = Plan::parse(rows.iter().map(|row| row.iter().map(String::as_str)));
    let message = refused(result, "40F299").1;
    assert!(message.len() < 6000, "{} bytes", message.len());
    assert!(message.contains("rank 40 | …"), "{message}");
}

#[test]
fn empty_plans_and_idle_ranks_are_refused() {
    assert!(matches!(plan(&[]), Err(PlanError::EmptyShape { .. })));
    assert!(matches!(plan(&["0F0 0B0", ""]), Err(PlanError::IdleRank { .. })));
    assert!(matches!(plan(&["0F0 nonsense"]), Err(PlanError::Parse { rank: 0, position: 1, .. })));
}

#[test]
fn a_grid_with_idle_cells_reads_back() {
    let plan = plan(&["0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"]).expect("a plan");
    let grid = plan.to_string();
    let rows = grid.lines().map(|line| {
        let cells = line.split_once('|').map_or("", |(_, cells)| cells);
        cells.split_whitespace().filter(|cell| *cell != ".")
    });
    assert_eq!(Plan::parse(rows).as_ref(), Ok(&plan));
    assert_eq!(plan.stages_of(1), [Stage::new(1)]);
}
