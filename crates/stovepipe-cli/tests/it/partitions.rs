//! Cuts that are known, and what they ask of ranks.

use crate::command::{json, number, refused, text};
use crate::tuning::profile;

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
fn ranks_that_differ() {
    let found = json(
        "partition --costs 1,1,1,1,1,1,1,1,1 --parts 2 --speeds 1,2 --together 2-3 --pin 3:1 --json",
    );
    assert_eq!(found["sizes"], serde_json::json!([2, 7]));
    assert_eq!(found["costs"], serde_json::json!([2.0, 3.5]));
    assert_eq!((&found["bottleneck"], &found["bottleneck_rank"]), (&3.5.into(), &1.into()));
    // Both sides of a cut pay for it.
    let found = json("partition --costs 1,1,1 --parts 3 --cut-costs 4,2 --json");
    assert_eq!(found["costs"], serde_json::json!([5.0, 7.0, 3.0]));
    // What is cut otherwise is priced alike.
    let found = json("partition --costs 2,2,2 --parts 2 --speeds 2,1 --partitioner uniform --json");
    assert_eq!(number(&found["bottleneck"]), 2.0);
}

#[test]
fn parts_that_share_a_rank() {
    let layers = "partition --costs 20ms,10ms,10ms,20ms --fixed-bytes 1MiB --kept-bytes 1MiB";
    let found = json(&format!("{layers} --placement 0,1,0 --json"));
    assert_eq!(found["placement"], serde_json::json!([0, 1, 0]));
    assert_eq!(found["sizes"], serde_json::json!([1, 2, 1]));
    let ranks = &found["ranks"];
    assert_eq!((number(&ranks[0]["cost"]), ranks[0]["bytes"].as_u64()), (0.04, Some(4 << 20)));
    assert_eq!(ranks[0].get("memory"), None);
    // A schedule places its stages, and keeps so many micro-batches on each.
    let scheduled = format!("{layers} --schedule zb-v --ranks 2 --micro-batches 4");
    let found = json(&format!("{scheduled} --memory 1GiB --json"));
    assert_eq!(found["placement"], serde_json::json!([0, 1, 1, 0]));
    assert_eq!(found["ranks"][0]["memory"], 1 << 30);
    let kept = |more: &str| json(&format!("{scheduled} {more} --json"))["bytes"][0].as_u64();
    assert!(kept("") > kept("--kept-micro-batches 1"));
    let said = text(&format!("{scheduled} --memory 1GiB"));
    for part in ["| 0    | 0, 3 ", "40 ms", "1.0 GiB", "bottleneck: rank 0 with 40 ms"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let error = refused(&format!("{scheduled} --memory 4MiB"));
    assert!(error.contains("the layers don't fit: cut into [1, 1, 1, 1]"), "{error}");
    // Recomputed activations are needed by one part of a rank at a time, inputs by each.
    let found = json(
        "partition --costs 1,1,1 --placement 0,1,0 --entry-bytes 5 --working-bytes 100 \
         --kept-micro-batches 2 --json",
    );
    assert_eq!(found["ranks"][0]["bytes"], 120);
    assert_eq!(found["bytes"], serde_json::json!([110, 110, 110]));
}

#[test]
fn a_search_that_ends_early_says_how_good_its_cut_is() {
    let costs: Vec<String> = (0..40u32).map(|i| (1 + i * 7919 % 97).to_string()).collect();
    let run = format!(
        "partition --costs {} --schedule interleaved-1f1b --ranks 4 --micro-batches 8",
        costs.join(",")
    );
    let found = json(&format!("{run} --json"));
    assert!(number(&found["bound"]) < number(&found["bottleneck"]));
    assert!(text(&run).contains("not all cuts were looked at; none has less than"));
}

#[test]
fn profiles_are_cut() {
    let profile = profile("cut.json", 4);
    let run = format!("partition --profile {} --parts 2", profile.display());
    // A second for every sample forward and backward, and by default as many as were measured.
    for (more, cost) in [("", 32.0), ("--samples 4", 16.0), ("--samples 1 --by time", 4.0)] {
        assert_eq!(number(&json(&format!("{run} {more} --json"))["bottleneck"]), cost, "{more}");
    }
    // 4096 bytes all the time, and 10 for every sample.
    let found = json(&format!("{run} --by bytes --samples 4 --json"));
    assert_eq!(number(&found["bottleneck"]), 2.0 * (4096.0 + 40.0));
    assert_eq!(found["bytes"][0], 2 * (4096 + 40));
    let said = text(&format!("{run} --memory 16KiB --samples 4"));
    assert!(said.contains("16 s") && said.contains("8.1 KiB"), "{said}");
    assert!(refused(&format!("{run} --memory 8KiB")).contains("the layers don't fit"));
}
