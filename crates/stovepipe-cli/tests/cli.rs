//! The command as a user runs it: known numbers, files, and errors that help.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn stovepipe(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stovepipe"))
        .args(arguments.split_whitespace())
        .output()
        .expect("the command starts")
}

#[track_caller]
fn text(arguments: &str) -> String {
    let output = stovepipe(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(arguments)).expect("json")
}

/// The message of a command that must fail.
#[track_caller]
fn refused(arguments: &str) -> String {
    let output = stovepipe(arguments);
    assert!(!output.status.success(), "{arguments} succeeded");
    assert!(output.stdout.is_empty(), "{arguments} printed something");
    String::from_utf8(output.stderr).expect("text")
}

fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("a scratch file");
    path
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn close(found: &Value, expected: f64) -> bool {
    (number(found) - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

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
    // `compare` takes the costs of a whole rank.
    let all = json("compare --ranks 4 --micro-batches 8 --forward 1 --backward 2 --json");
    for (name, makespan, idle, peaks) in rows {
        let listed = all["schedules"].as_array().expect("schedules");
        let row = listed.iter().find(|row| row["schedule"] == name).expect(name);
        assert_eq!(number(&row["makespan"]), makespan, "{name}");
        assert_eq!(row["idle"], serde_json::json!([idle, idle, idle, idle]), "{name}");
        assert_eq!(row["peak_activations"], serde_json::json!(peaks), "{name}");
        // `simulate` those of a stage.
        let (forward, backward) = if row["stages_per_rank"] == 2 { (0.5, 1.0) } else { (1.0, 2.0) };
        let found = json(&format!(
            "simulate --schedule {name} --ranks 4 --micro-batches 8 --stages-per-rank {} \
             --forward {forward} --backward {backward} --json",
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
    let half = "--forward 0.5 --backward 1";
    assert_eq!(beyond("interleaved-1f1b", 6, half).1, Some(12));
    assert_eq!(beyond("interleaved-1f1b", 3, half).0, 6.0);
    assert_eq!(beyond("zb-h1", 3, "").0, 4.0);
    // Idle (P-1)(F+B), over V, and (P-1)(F+I-W); peaks M, min(P, M), VP+P-1 and MV.
    for (schedule, m, costs, idle, peak) in [
        ("gpipe", 12, "--forward 2 --backward 5", 21.0, 12),
        ("1f1b", 12, "--forward 2 --backward 5", 21.0, 4),
        ("interleaved-1f1b", 12, "--stages-per-rank 3 --forward 2 --backward 5", 21.0, 15),
        ("looped-bfs", 12, "--stages-per-rank 3 --forward 2 --backward 5", 21.0, 36),
        ("zb-h1", 12, "--forward 2 --backward 5 --weight-grad 2", 9.0, 4),
    ] {
        assert_eq!(beyond(schedule, m, costs), (idle, Some(peak)), "{schedule}");
    }

    let found = json("simulate --schedule dualpipe-v --ranks 4 --micro-batches 10 --json");
    assert_eq!(number(&found["makespan"]), 63.0);
    for rank in found["ranks"].as_array().expect("ranks") {
        assert_eq!((number(&rank["idle"]), rank["peak_activations"].as_u64()), (3.0, Some(9)));
    }
}

#[test]
fn partitions() {
    for (costs, parts, bottleneck, sizes) in [
        ("1,1,1,1,1,1,1", 4, 2.0, None),
        ("13,13,19,16", 3, 26.0, Some(vec![2, 1, 1])),
        ("1,1,1,1", 4, 1.0, Some(vec![1, 1, 1, 1])),
        ("5,2,5,5,7,12,3", 4, 12.0, None),
        ("1,1,1,1,1", 4, 2.0, None),
        ("1,2,3,4,5,6", 2, 11.0, Some(vec![4, 2])),
        ("6,5,4,3,2,1", 2, 11.0, Some(vec![2, 4])),
        (&["1"; 42].join(","), 16, 3.0, None),
        (&["1"; 38].join(","), 8, 5.0, None),
    ] {
        let found = json(&format!("partition --costs {costs} --parts {parts} --json"));
        assert_eq!(number(&found["bottleneck"]), bottleneck, "{costs}");
        let cut = found["sizes"].as_array().expect("sizes");
        assert!(cut.len() == parts && cut.iter().all(|size| *size != 0), "{found}");
        if let Some(sizes) = sizes {
            assert_eq!(found["sizes"], serde_json::json!(sizes));
        }
    }
}

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
        let found = json(&format!("simulate --plan {path} --forward 0.5 --backward 1 --json"));
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

/// Layers that take a second for every sample forward and back, and keep 10 bytes for each.
fn profile(name: &str) -> PathBuf {
    let time = |seconds: usize| serde_json::json!({"median": seconds as f64, "spread": 0.0});
    let measurement = |samples: usize| {
        serde_json::json!({
            "samples": samples,
            "forward": time(samples), "recompute": time(samples), "backward": time(samples),
            "input_bytes": samples, "output_bytes": samples,
            "memory": {
                "activation_bytes": 10 * samples, "forward_bytes": 0, "untaped_bytes": 0,
                "backward_bytes": 0,
            },
        })
    };
    let layer = |number: usize| {
        serde_json::json!({
            "name": format!("layers.{number}"),
            "parameter_bytes": 1024, "gradient_bytes": 1024, "optimizer_bytes": 2048,
            "update_bytes": 0, "staged_bytes": 0,
            "update": time(0),
            "measurements": [measurement(1), measurement(8)],
        })
    };
    let layers: Vec<Value> = (0..4).map(layer).collect();
    let profile = serde_json::json!({"version": 2, "device": "made up", "workspace_bytes": 0, "layers": layers});
    file(name, profile.to_string().as_bytes())
}

#[test]
fn tuning_a_profile() {
    let profile = profile("profile.json");
    let run = format!("tune --profile {} --ranks 2 --schedules gpipe", profile.display());
    let found = json(&format!("{run} --json"));
    let best = &found["choices"][0];
    // Two stages of two layers, eight micro-batches of one sample: 2 * 2 (8 + 1).
    assert_eq!((number(&best["micro_batches"]), number(&best["seconds"])), (8.0, 36.0));
    assert_eq!(best["sizes"], serde_json::json!([2, 2]));
    let table = text(&run);
    assert!(table.contains("best: gpipe on 2 ranks") && table.contains("+"), "{table}");

    // One rank can't hold all parameters, two can.
    let limited = text(&format!("{run} --memory 12KiB"));
    assert!(limited.contains("can't run"), "{limited}");
    let error = refused(&format!("{run} --memory 4KiB"));
    for part in
        ["no configuration fits", "lacks", "; it would fit with", "more bytes on every rank"]
    {
        assert!(error.contains(part), "{error}");
    }
    // What it says would fit does: as many ranks as layers, or more memory.
    let error = refused(&format!("{run} --memory 5KiB"));
    assert!(error.contains(", or on 4 ranks like the last one"), "{error}");
    text(&format!("{} --memory 5KiB", run.replace("--ranks 2", "--ranks 4")));
}

#[test]
fn tuning_refuses_what_it_cannot_use() {
    let profile = profile("refused.json");
    let run = format!("tune --profile {}", profile.display());
    assert!(refused(&format!("{run} --ranks 0")).contains("give at least 1"));
    assert!(refused(&format!("{run} --ranks 2 --memory lots")).contains("lots"));
    assert!(refused(&format!("{run} --ranks 2 --schedules best")).contains("best"));
    assert!(
        refused("tune --profile nowhere.json --ranks 2").contains("nowhere.json can't be read")
    );
    let broken = file("broken.json", b"{\"version\": 9}");
    let error = refused(&format!("tune --profile {} --ranks 2", broken.display()));
    assert!(error.contains("version 9"), "{error}");
}
