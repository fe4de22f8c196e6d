//! Numbers, lists and files that are far out: they are refused at once, and the message says which
//! argument it was.

use std::process::Command;

use crate::command::{file, refused};
use crate::tuning::profile;

const MOST: &str = "18446744073709551615";

/// A command that must be refused, by no panic and with a message that names the argument.
#[track_caller]
fn refuses(arguments: &str, named: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_stovepipe"))
        .args(arguments.split(' ').map(|argument| argument.trim_matches('"')))
        .output()
        .expect("the command starts");
    let error = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(code.is_some_and(|code| code != 0 && code != 101), "{arguments}: {code:?} {error}");
    assert!(output.stdout.is_empty(), "{arguments} printed something");
    assert!(error.contains(named), "{arguments}: {error}");
    assert!(error.len() < 2000, "{arguments}: {error}");
}

/// Each pair is an argument with its value, and what the message names.
fn refuses_all(command: &str, endings: &[(&str, &str)]) {
    for (ending, named) in endings {
        refuses(&format!("{command} {}", ending.replace("MOST", MOST)), named);
    }
}

#[test]
fn shapes() {
    let shapes = [
        ("--ranks MOST --micro-batches 1", "--ranks"),
        ("--ranks 1 --micro-batches MOST", "--micro-batches"),
        ("--ranks MOST --micro-batches MOST", "--ranks"),
        ("--ranks 2 --micro-batches 2 --stages-per-rank MOST", "--stages-per-rank"),
        ("--ranks 2 --micro-batches 2 --stages-per-rank 0", "--stages-per-rank"),
        ("--ranks 0 --micro-batches 2", "--ranks"),
        ("--ranks 2 --micro-batches 0", "--micro-batches"),
        ("--ranks 2 --micro-batches -1", "--micro-batches"),
        ("--ranks 2 --micro-batches \"\"", "--micro-batches"),
        ("--ranks 99999999999999999999 --micro-batches 2", "--ranks"),
        ("--ranks nan --micro-batches 2", "--ranks"),
        ("--ranks 2.5 --micro-batches 2", "--ranks"),
    ];
    for schedule in stovepipe_schedule::schedules() {
        refuses_all(&format!("plan --schedule {}", schedule.name), &shapes);
    }
    refuses_all("simulate --schedule interleaved-1f1b", &shapes);
    refuses_all("compare", &shapes);
    refuses_all("sweep --work 32", &shapes);
    refuses_all("partition --costs 1,2,3,4 --schedule looped-bfs", &shapes);
}

#[test]
fn costs() {
    let costs = [
        ("--forward -1", "--forward"),
        ("--forward 1,nan", "--forward"),
        ("--forward inf", "--forward"),
        ("--forward \"\"", "--forward"),
        ("--forward ,", "--forward"),
        ("--forward 1 --backward 1e999", "--backward"),
        ("--forward 1e308 --backward 1e308", "--forward"),
        ("--forward 1 --backward 1,2,3", "--backward"),
        ("--forward 1 --weight-grad 5", "--weight-grad"),
        ("--forward 1 --recompute 5km", "--recompute"),
        ("--forward 1 --update -0.5", "--update"),
        ("--forward 1 --overhead nan", "--overhead"),
        ("--forward 1 --latency ms", "--latency"),
        ("--forward 1 --send 1e308h", "--send"),
        ("--forward 1 --receive soon", "--receive"),
        ("--forward 1 --queue 0", "--queue"),
        ("--forward 1 --bandwidth 0 --boundary-bytes 5", "--bandwidth"),
        ("--forward 1 --bandwidth 10Gb/s --boundary-bytes 5", "--bandwidth"),
        ("--forward 1 --bandwidth 5", "--boundary-bytes"),
        ("--forward 1 --boundary-bytes 1e40", "--boundary-bytes"),
        ("--forward 1 --activation-bytes MOST,-1", "--activation-bytes"),
        ("--forward 1 --activation-bytes 5YiB", "--activation-bytes"),
        ("--forward 1 --checkpoint budget=5", "--activation-bytes"),
        ("--forward 1 --checkpoint every-layers=0", "--checkpoint"),
        ("--forward 1 --micro-batches x", "--micro-batches"),
    ];
    for command in [
        "simulate --schedule 1f1b --ranks 2 --micro-batches 4",
        "compare --ranks 2 --micro-batches 4",
        "sweep --ranks 2",
    ] {
        refuses_all(command, &costs);
    }
    refuses_all(
        "sweep --ranks 2",
        &[
            ("--work nan", "--work"),
            ("--work 1 --forward 1", "--work"),
            ("--work 1 --backward 1", "--work"),
            ("--overhead 1", "--work"),
            ("--work 1 --micro-batches 1,MOST", "--micro-batches"),
            ("--work 1 --micro-batches 1,,2", "--micro-batches"),
            ("--work 1 --schedule dualpipe-v --micro-batches 1", "--micro-batches"),
            ("--work 1 --svg no/such/folder.svg", "no/such/folder.svg"),
        ],
    );
    // As large as can be is fine.
    let run = "simulate --schedule 1f1b --ranks 2 --micro-batches 4 --queue MOST \
               --activation-bytes MOST --boundary-bytes MOST --bandwidth 1e308";
    crate::command::text(&run.replace("MOST", MOST));
}

#[test]
fn units_that_do_not_agree() {
    for command in [
        "simulate --schedule 1f1b --ranks 2 --micro-batches 4",
        "compare --ranks 2 --micro-batches 4",
        "sweep --ranks 2 --micro-batches 4",
    ] {
        for (arguments, both) in [
            ("--forward 20ms --latency 5", ["--forward 20ms", "--latency 5"]),
            ("--forward 20ms,30", ["--forward 20ms", "--forward 30"]),
            ("--forward 20 --overhead 5us", ["--forward 20", "--overhead 5us"]),
            (
                "--forward 20 --boundary-bytes 5 --bandwidth 1GB/s",
                ["--forward 20", "--bandwidth 1GB/s"],
            ),
            (
                "--forward 20ms --boundary-bytes 5 --bandwidth 12.5e6",
                ["--forward 20ms", "--bandwidth 12.5e6"],
            ),
        ] {
            for named in both {
                refuses(&format!("{command} {arguments}"), named);
            }
        }
    }
    refuses("compare --ranks 2 --micro-batches 4 --latency 5ms", "--forward 1 by default");
    refuses("sweep --ranks 2 --work 32ms --overhead 5", "--work 32ms");
    refuses("partition --parts 2 --costs 1,2ms", "--costs 2ms");
    refuses("partition --parts 2 --costs 1ms,2MiB", "--costs 2MiB");
    refuses("partition --parts 2 --costs 1ms,2ms --cut-costs 3", "--cut-costs 3");
}

#[test]
fn partitions() {
    refuses_all(
        "partition --costs 1,2,3",
        &[
            ("--parts 0", "--parts"),
            ("--parts MOST", "--parts"),
            ("--parts -1", "--parts"),
            ("--placement MOST,0", "--placement"),
            ("--placement 0,2", "--placement"),
            ("--placement 0,0,0,0", "--placement"),
            ("--placement \"\"", "--placement"),
            ("--parts 2 --placement 0,1", "--placement"),
            ("--parts 2 --ranks 2", "--ranks"),
            ("--parts 2 --speeds 0", "--speeds"),
            ("--parts 2 --speeds nan,1", "--speeds"),
            ("--parts 2 --speeds -1", "--speeds"),
            ("--parts 2 --speeds 1,2,3", "--speeds"),
            ("--parts 2 --cut-costs 1,2,3", "--cut-costs"),
            ("--parts 2 --cut-costs inf", "--cut-costs"),
            ("--parts 2 --memory 5", "--memory"),
            ("--parts 2 --kept-micro-batches 5", "--kept-micro-batches"),
            ("--parts 2 --fixed-bytes 1,2", "--fixed-bytes"),
            ("--parts 2 --fixed-bytes 1 --memory 1,2,3", "--memory"),
            ("--parts 2 --fixed-bytes 1 --kept-micro-batches -1", "--kept-micro-batches"),
            ("--parts 2 --pin MOST:0", "--pin"),
            ("--parts 2 --pin 0:MOST", "--pin"),
            ("--parts 2 --pin 0", "--pin"),
            ("--parts 2 --pin 0:1,2:0", "pinned"),
            ("--parts 2 --together 0-MOST", "--together"),
            ("--parts 2 --together 2-1", "--together"),
            ("--parts 3 --together 0-2", "groups"),
            ("--parts 2 --partitioner uniform --pin 2:0", "--pin"),
            ("--parts 2 --partitioner minimax --together 1-2", "--together"),
            ("--parts 2 --partitioner explicit=1,1", "--partitioner"),
            ("--parts 2 --partitioner explicit=MOST,1", "--partitioner"),
            ("--parts 2 --partitioner explicit=2,1 --fixed-bytes 5 --memory 5", "--memory"),
            ("--parts 2 --samples 5", "--samples"),
            ("--parts 2 --by bytes", "--by"),
            ("--parts 2 --profile p.json", "--profile"),
        ],
    );
    refuses_all(
        "partition --parts 2",
        &[
            ("", "--costs"),
            ("--costs \"\"", "--costs"),
            ("--costs 1,,2", "--costs"),
            ("--costs nan,1", "--costs"),
            ("--costs -1,1", "--costs"),
            ("--costs 1e308,1e308", "--costs"),
            ("--costs 1e308,1 --speeds 1e-300", "speeds"),
        ],
    );
    // What needs more than can be counted is shown, and doesn't fit.
    let run = format!("partition --costs 1,2,3 --placement 0,1,0 --fixed-bytes {MOST}");
    crate::command::text(&run);
    refuses(&format!("{run} --memory 16EiB"), "--memory");
    refuses(&format!("{run} --memory 15EiB"), "the layers don't fit");
}

#[test]
fn files() {
    let noise: Vec<u8> = (0..4000u32).map(|i| (i * 7919 % 256) as u8).collect();
    let huge = file("huge.csv", b"");
    let grown = std::fs::File::options().write(true).open(&huge).expect("the file");
    // It takes no space.
    grown.set_len(1 << 40).expect("a sparse file");
    for (path, place) in [
        (huge, "larger than 2 GiB"),
        (file("text.bin", &noise), "from byte"),
        (file("cell.csv", b"0F0,0B0\n1F0,1X0\n"), "rank 1, cell 1"),
        (file("line.csv", b"0F0,0B0\n\n1F0,1B0\n"), "line 2"),
        (file("index.csv", format!("{MOST}F0,{MOST}B0\n").as_bytes()), "rank 0, cell 0"),
        (file("column.json", b"{\"ranks\": [[\"0F0\", 5]]}"), "column"),
        (file("field.json", b"{\"rows\": []}"), "line 1 column"),
        (std::env::temp_dir(), "can't be read"),
    ] {
        let path = path.display().to_string();
        for command in ["check ", "simulate --plan ", "check --in-flight 0 "] {
            let error = refused(&format!("{command}{path}"));
            assert!(error.contains(place) && error.contains(&path), "{command}: {error}");
        }
    }
    let profile = profile("extremes.json", 4);
    let run = format!("partition --parts 2 --profile {}", profile.display());
    refuses_all(
        &run,
        &[
            ("--samples 0", "--samples"),
            ("--samples MOST", "--samples"),
            ("--cut-costs 5", "--cut-costs"),
            ("--fixed-bytes 5", "--fixed-bytes"),
            ("--memory 1KiB", "the layers don't fit"),
        ],
    );
    for (name, content, place) in [
        ("no.json", "", "no.json"),
        ("cut.json", "{\"version\": 2, \"device\": \"x\"", "column"),
        ("newer.json", "{\"version\": 9}", "version 9"),
    ] {
        let path = file(name, content.as_bytes()).display().to_string();
        let error = refused(&format!("partition --parts 2 --profile {path}"));
        assert!(error.contains(place) && error.contains(&path), "{error}");
    }
    refuses("check plan.csv --in-flight -1", "--in-flight");
}

#[test]
fn tuning() {
    let profile = profile("extremes-tune.json", 4);
    let run = format!("tune --profile {}", profile.display());
    let endings = [
        ("--ranks MOST", "--ranks"),
        ("--ranks 0", "--ranks"),
        ("--ranks 2 --batch MOST", "--batch"),
        ("--ranks 2 --batch 0", "--batch"),
        ("--ranks 2 --batch 1099511627776", "use fewer ranks, stages_per_rank or micro-batches"),
        ("--ranks 2 --micro-batches MOST", "--micro-batches"),
        ("--ranks 2 --micro-batches 0", "--micro-batches"),
        ("--ranks 2 --stages-per-rank MOST", "--stages-per-rank"),
        ("--ranks 2 --stages-per-rank 0", "--stages-per-rank"),
        ("--ranks 2 --memory 1,2,3", "--memory"),
        ("--ranks 2 --memory lots", "--memory"),
        ("--ranks 2 --speeds nan", "--speeds"),
        ("--ranks 2 --speeds 1,2,3", "--speeds"),
        ("--ranks 2 --latency -1ms", "--latency"),
        ("--ranks 2 --bandwidth 0", "--bandwidth"),
        ("--ranks 2 --ranks-per-node 0", "--ranks-per-node"),
        ("--ranks 2 --node-latency 1ms", "--ranks-per-node"),
        ("--ranks 2 --send 1e400", "--send"),
        ("--ranks 2 --receive-bandwidth inf", "--receive-bandwidth"),
        ("--ranks 2 --policies budget=1GiB", "--policies"),
        ("--ranks 2 --policies often", "--policies"),
        ("--ranks 2 --schedules best", "--schedules"),
    ];
    refuses_all(&run, &endings);
}
