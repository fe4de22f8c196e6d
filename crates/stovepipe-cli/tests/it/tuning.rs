//! Tuning from a profile.

use std::path::PathBuf;

use serde_json::Value;

use crate::command::{file, json, number, refused, text};

/// Layers that take a second for every sample forward and back, and keep 10 bytes for each.
pub(crate) fn profile(name: &str, layers: usize) -> PathBuf {
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
    let layers: Vec<Value> = (0..layers).map(layer).collect();
    let profile = serde_json::json!({"version": 2, "device": "made up", "workspace_bytes": 0, "layers": layers});
    file(name, profile.to_string().as_bytes())
}

#[test]
fn tuning_a_profile() {
    let profile = profile("profile.json", 4);
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
    let profile = profile("refused.json", 4);
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
