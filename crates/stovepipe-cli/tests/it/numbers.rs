//! Figures that are known: makespans, bubbles, peaks, cuts, and the price of recomputation and
//! messages.

use serde_json::Value;

use crate::command::{close, json, number, text};

#[test]
fn balanced_flush() {
    for (m, percent) in [(1, 25.0), (4, 57.1), (16, 84.2)] {
        for schedule in ["gpipe", "1f1b"] {
            let found = json(&format!(
                "simulate --schedule {schedule} --ranks 4 --micro-batches {m} \
                 --forward 1 --backward 1 --json"
            ));
            assert_eq!(number(&found["makespan"]), 2.0 * (f64::from(m) + 3.0));
            assert!((100.0 * number(&found["utilization"]) - percent).abs() < 0.05, "{found}");
        }
    }
}

#[test]
fn unbalanced_flush() {
    let run = |schedule: &str, m: usize| {
        json(&format!(
            "simulate --schedule {schedule} --ranks 4 --micro-batches {m} \
             --forward 1,1,2,1 --backward 1,1,2,1 --json"
        ))
    };
    for m in [1, 4, 16] {
        assert_eq!(number(&run("forward-only", m)["makespan"]), 2.0 * m as f64 + 3.0);
        assert_eq!(number(&run("gpipe", m)["makespan"]), 4.0 * m as f64 + 6.0);
    }
    let found = run("gpipe", 16);
    assert_eq!(number(&found["makespan"]), 70.0);
    let ranks = found["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.iter().map(|rank| number(&rank["busy"])).sum::<f64>(), 160.0);
    assert!((100.0 * number(&found["utilization"]) - 57.1).abs() < 0.05);
    let many = run("gpipe", 4000);
    assert!((100.0 * number(&many["utilization"]) - 62.5).abs() < 0.05);
}

#[test]
fn fixed_work() {
    let found = json(
        "sweep --ranks 4 --work 32 --overhead 0.5 --micro-batches 1,2,4,8,16,32,64,128 --json",
    );
    for point in found["points"].as_array().expect("points") {
        let m = number(&point["micro_batches"]);
        assert!(close(&point["makespan"], 64.0 + 192.0 / m + m + 3.0), "{point}");
    }
    assert_eq!(found["points"][4]["makespan"], 95.0);
    assert_eq!(found["points"][7]["makespan"], 196.5);
    assert_eq!(found["best"], 16);
    assert!(close(&found["continuous_optimum"], (96.0f64 / 0.5).sqrt()));
    let free = json("sweep --ranks 4 --work 32 --overhead 0 --micro-batches 8,4000 --json");
    assert!((number(&free["points"][1]["makespan"]) - 64.0).abs() < 0.1);
    assert_eq!(free["continuous_optimum"], Value::Null);
}

#[test]
fn fixed_work_of_every_schedule() {
    let points = |arguments: &str| {
        let found = json(&format!("sweep --ranks 4 --json {arguments}"));
        let points = found["points"].as_array().expect("points").iter();
        let makespans: Vec<f64> = points.map(|point| number(&point["makespan"])).collect();
        (makespans, found)
    };
    // Forwards alone: (M + P - 1) (F / M + overhead).
    let (makespans, found) =
        points("--schedule forward-only --forward 32 --overhead 0.5 --micro-batches 4,8");
    assert_eq!(makespans, [7.0 * 8.5, 11.0 * 4.5]);
    assert!(close(&found["continuous_optimum"], (3.0f64 * 32.0 / 0.5).sqrt()));
    // A backward takes two forwards by default, and both are those of a whole rank.
    for (schedule, stages) in [("interleaved-1f1b", 3), ("looped-bfs", 2), ("zb-v", 2)] {
        let (makespans, found) = points(&format!(
            "--schedule {schedule} --stages-per-rank {stages} --forward 8 --micro-batches 8"
        ));
        let one = json(&format!(
            "simulate --schedule {schedule} --stages-per-rank {stages} --ranks 4 --micro-batches 8 \
             --json"
        ));
        assert!(close(&one["makespan"], makespans[0]), "{schedule}");
        assert_eq!(found["continuous_optimum"], Value::Null);
    }
    // What grows with samples is cut, latency isn't; the other costs are those of simulate.
    let (makespans, found) = points(
        "--schedule 1f1b --forward 32s --backward 32s --recompute 16s --latency 1ms \
         --boundary-bytes 64MiB --bandwidth 1MiB/s --activation-bytes 1KiB --micro-batches 16",
    );
    let one = json(
        "simulate --schedule 1f1b --ranks 4 --micro-batches 16 --forward 2 --backward 2 \
         --recompute 1 --latency 0.001 --boundary-bytes 4194304 --bandwidth 1048576 \
         --activation-bytes 64 --json",
    );
    assert!(close(&one["makespan"], makespans[0]));
    assert_eq!(found["points"][0]["peak_bytes"], one["ranks"][0]["peak_bytes"]);
    // What a schedule can't do is said.
    let (makespans, found) = points("--schedule dualpipe-v --work 32 --micro-batches 4,8,16");
    assert_eq!((makespans.len(), found["refused"][0]["micro_batches"].as_u64()), (2, Some(4)));
    let said = text("sweep --ranks 4 --schedule dualpipe-v --work 32 --micro-batches 4,8");
    assert!(said.contains("not listed: dualpipe-v cannot plan for 4 ranks"), "{said}");
}

#[test]
fn units_agree_and_are_shown() {
    let run = "--ranks 4 --micro-batches 8 --forward 20ms --backward 40ms --activation-bytes 1MiB";
    let plain = "--ranks 4 --micro-batches 8 --forward 20 --backward 40 --activation-bytes 1048576";
    for command in ["simulate --schedule 1f1b", "compare"] {
        let (with, without) =
            (text(&format!("{command} {run}")), text(&format!("{command} {plain}")));
        assert!(with.contains("660 ms") && without.contains("660"), "{with}{without}");
        assert!(with.contains("4.0 MiB") && without.contains("4194304"), "{with}{without}");
        assert!(!without.contains("660 ms") && !without.contains("MiB"), "{without}");
    }
    // Seconds, in JSON.
    let found = json(&format!("simulate --schedule 1f1b {run} --json"));
    assert!(close(&found["makespan"], 0.66));
    let gigabits = "--boundary-bytes 1250000 --bandwidth 10Gbit/s --latency 0";
    let bytes = "--boundary-bytes 1.25MB --bandwidth 1.25GB/s";
    let makespan = |more: &str| {
        number(&json(&format!("simulate --schedule 1f1b {run} {more} --json"))["makespan"])
    };
    assert_eq!(makespan(gigabits), makespan(bytes));
    assert!(makespan(bytes) > 0.66);
}

#[test]
fn gpipe_bubbles() {
    for (m, percent) in [(1, 75), (4, 43), (8, 27), (16, 16)] {
        let found =
            json(&format!("simulate --schedule gpipe --ranks 4 --micro-batches {m} --json"));
        assert!(close(&found["bubble"], 3.0 / f64::from(m + 3)));
        assert_eq!((100.0 * number(&found["bubble"])).round() as i32, percent);
    }
}

#[test]
fn schedules_at_four_ranks() {
    let rows = [
        ("gpipe", 33.0, 9.0, [8, 8, 8, 8]),
        ("1f1b", 33.0, 9.0, [4, 3, 2, 1]),
        ("interleaved-1f1b", 28.5, 4.5, [11, 9, 7, 5]),
        ("looped-bfs", 28.5, 4.5, [16, 16, 16, 16]),
        ("zb-h1", 27.0, 3.0, [4, 4, 4, 4]),
        ("zb-v", 25.5, 1.5, [8, 8, 8, 8]),
    ];
    // Costs are those of a whole rank, in all commands.
    let all = json("compare --ranks 4 --micro-batches 8 --forward 1 --backward 2 --json");
    for (name, makespan, idle, peaks) in rows {
        let listed = all["schedules"].as_array().expect("schedules");
        let row = listed.iter().find(|row| row["schedule"] == name).expect(name);
        assert_eq!(number(&row["makespan"]), makespan, "{name}");
        assert_eq!(row["idle"], serde_json::json!([idle, idle, idle, idle]), "{name}");
        assert_eq!(row["peak_activations"], serde_json::json!(peaks), "{name}");
        let found = json(&format!(
            "simulate --schedule {name} --ranks 4 --micro-batches 8 --stages-per-rank {} \
             --forward 1 --backward 2 --json",
            row["stages_per_rank"]
        ));
        assert_eq!(number(&found["makespan"]), makespan, "{name}");
        for (rank, peak) in found["ranks"].as_array().expect("ranks").iter().zip(peaks) {
            assert_eq!(number(&rank["idle"]), idle);
            assert_eq!(rank["peak_activations"], peak);
        }
    }
    let makespans = all["schedules"].as_array().expect("schedules").iter();
    assert!(makespans.map(|row| number(&row["makespan"])).is_sorted());

    // Beyond the formulas.
    let beyond = |schedule: &str, m: usize, costs: &str| {
        let run = format!("simulate --schedule {schedule} --ranks 4 --micro-batches {m}");
        let found = json(&format!("{run} {costs} --json"));
        let rank = &found["ranks"][0];
        (number(&rank["idle"]), rank["peak_activations"].as_u64())
    };
    let whole = "--forward 1 --backward 2";
    assert_eq!(beyond("interleaved-1f1b", 6, whole).1, Some(12));
    assert_eq!(beyond("interleaved-1f1b", 3, whole).0, 6.0);
    assert_eq!(beyond("zb-h1", 3, "").0, 4.0);
    // Idle (P-1)(F+B), over V, and (P-1)(F+I-W); peaks M, min(P, M), VP+P-1 and MV.
    for (schedule, m, costs, idle, peak) in [
        ("gpipe", 12, "--forward 2 --backward 5", 21.0, 12),
        ("1f1b", 12, "--forward 2 --backward 5", 21.0, 4),
        ("interleaved-1f1b", 12, "--stages-per-rank 3 --forward 6 --backward 15", 21.0, 15),
        ("looped-bfs", 12, "--stages-per-rank 3 --forward 6 --backward 15", 21.0, 36),
        ("zb-h1", 12, "--forward 2 --backward 5 --weight-grad 2", 9.0, 4),
    ] {
        assert_eq!(beyond(schedule, m, costs), (idle, Some(peak)), "{schedule}");
    }

    // Two stages on a rank, each as long as one and two units.
    let dualpipe = "simulate --schedule dualpipe-v --ranks 4 --micro-batches 10";
    let found = json(&format!("{dualpipe} --forward 2 --backward 4 --json"));
    assert_eq!(number(&found["makespan"]), 63.0);
    for rank in found["ranks"].as_array().expect("ranks") {
        assert_eq!((number(&rank["idle"]), rank["peak_activations"].as_u64()), (3.0, Some(9)));
    }
}

#[test]
fn costs_are_those_of_a_whole_rank_in_every_command() {
    let simulate = |costs: &str| {
        let run = "simulate --schedule interleaved-1f1b --ranks 2 --micro-batches 4";
        number(&json(&format!("{run} {costs} --json"))["makespan"])
    };
    // One value for all, one for each rank, and one for each stage of half the time.
    let expected = simulate("--forward 1 --backward 2");
    assert_eq!(simulate("--forward 1,1 --backward 2,2"), expected);
    assert_eq!(simulate("--forward 0.5,0.5,0.5,0.5 --backward 1,1,1,1"), expected);
    assert_eq!(simulate("--forward 0.5,0.5,0.5,0.5 --backward 2"), expected);
    // Beside 1F1B it has the smaller bubble.
    let plain = json("simulate --schedule 1f1b --ranks 2 --micro-batches 4 --json");
    assert!(expected < number(&plain["makespan"]));
    let said = text("simulate --schedule interleaved-1f1b --ranks 2 --micro-batches 4");
    assert!(said.contains("costs are those of a whole rank, which shares them among its 2 stages"));
}

#[test]
fn values_wait_before_a_slow_rank() {
    let run = "simulate --schedule forward-only --ranks 2 --micro-batches 64 --forward 1,51 --json";
    let waiting = |more: &str| {
        let found = json(&format!("{run} {more}"));
        (number(&found["makespan"]), found["ranks"][1]["most_queued"].as_u64())
    };
    let free = waiting("");
    assert_eq!(free.1, Some(62));
    assert_eq!(waiting("--queue 2"), (free.0, Some(2)));
    assert_eq!(waiting("--receive 1 --send 1").0, free.0 + 1.0 + 64.0);
}

#[test]
fn zero_costs_are_fine() {
    let found = json(
        "simulate --schedule 1f1b --ranks 2 --micro-batches 2 --forward 0 --backward 0 --json",
    );
    assert_eq!(found["makespan"], 0.0);
    assert_eq!((&found["utilization"], &found["bubble"]), (&Value::Null, &Value::Null));
    text("simulate --schedule 1f1b --ranks 2 --micro-batches 2 --forward 0 --backward 0");
}

#[test]
fn recomputation_communication_and_memory_have_their_price() {
    let run = |more: &str| {
        json(&format!("simulate --schedule gpipe --ranks 2 --micro-batches 4 --json {more}"))
    };
    let plain = number(&run("")["makespan"]);
    assert_eq!(number(&run("--recompute 1")["makespan"]), plain + 4.0);
    assert_eq!(number(&run("--checkpoint except-last")["makespan"]), plain + 3.0);
    assert_eq!(number(&run("--latency 1")["makespan"]), plain + 2.0);
    assert!(number(&run("--bandwidth 4 --boundary-bytes 2")["makespan"]) > plain);
    let bytes = |more: &str| run(more)["ranks"][0]["peak_bytes"].as_u64();
    assert_eq!(bytes("--activation-bytes 100 --boundary-bytes 10"), Some(400));
    let recomputed = "--activation-bytes 100 --boundary-bytes 10 --checkpoint always";
    assert_eq!(bytes(recomputed), Some(4 * 10 + 90));
    let path = run("")["critical_path"].clone();
    assert_eq!((&path[0], &path[1]), (&Value::from("0F0"), &Value::from("1F0")));
}

#[test]
fn comparing_heeds_recomputation_and_bytes() {
    let rows = |more: &str| {
        let found = json(&format!("compare --ranks 2 --micro-batches 4 --json {more}"));
        let rows = found["schedules"].as_array().expect("schedules").clone();
        move |name: &str| rows.iter().find(|row| row["schedule"] == name).expect("listed").clone()
    };
    let (plain, recomputed) = (rows(""), rows("--recompute 1 --activation-bytes 100"));
    assert_eq!(plain("gpipe").get("peak_bytes"), None);
    let slower = number(&recomputed("gpipe")["makespan"]) - number(&plain("gpipe")["makespan"]);
    assert_eq!(slower, 4.0);
    assert_eq!(recomputed("gpipe")["peak_bytes"], serde_json::json!([100, 100]));
    let kept = rows("--activation-bytes 100");
    assert_eq!(kept("gpipe")["peak_bytes"], serde_json::json!([400, 400]));
    // Half a rank's bytes for each of its two stages.
    assert_eq!(kept("looped-bfs")["peak_bytes"], serde_json::json!([400, 400]));
    let table = text("compare --ranks 2 --micro-batches 4 --activation-bytes 100");
    assert!(table.contains("kept bytes by rank") && table.contains("400, 400"), "{table}");
}
