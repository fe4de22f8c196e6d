//! Every entry of every registry is in the command line's help, in what it accepts, in the tuner,
//! and in the documents. So an entry needs its own file and its registry, and nothing else by hand.

use serde_json::Value;
use stovepipe_checkpoint::policies;
use stovepipe_partition::partitioners;
use stovepipe_schedule::schedules;

use crate::command::{json, text};
use crate::tuning::profile;

/// All documents in one text.
fn documents() -> String {
    // Cargo runs tests in their package's folder.
    let folder = std::env::current_dir().expect("a folder").join("../../docs");
    let files = std::fs::read_dir(folder).expect("the documents");
    let files = files.map(|file| file.expect("a document").path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect()
}

/// Whether a help text lists a value with its summary, whatever its columns.
fn lists(help: &str, form: &str, summary: &str) -> bool {
    let mut lines = help.lines().map(str::trim);
    lines.any(|line| {
        let value = line.strip_prefix("- ").and_then(|rest| rest.strip_prefix(form));
        value.is_some_and(|rest| rest.trim_start_matches([':', ' ']) == summary)
    })
}

/// The values of a field in everything that the tuner tried.
fn tried(arguments: &str, field: &str) -> Vec<String> {
    let found = json(&format!("{arguments} --json"));
    let lists = ["choices", "rejected"].map(|list| found[list].as_array().expect("a list").clone());
    let values = lists.iter().flatten().map(|tried| tried[field].as_str());
    values.map(|value| value.expect("a name").to_owned()).collect()
}

#[test]
fn every_schedule_is_everywhere() {
    let (documents, profile) = (documents(), profile("schedules.json", 4));
    let tune = format!("tune --profile {} --ranks 2", profile.display());
    let by_default = tried(&tune, "schedule");
    let helps = ["plan", "simulate", "sweep", "tune"].map(|run| text(&format!("{run} --help")));
    let compared = json("compare --ranks 2 --micro-batches 4 --json");
    for named in schedules() {
        let name = named.name;
        for help in &helps {
            assert!(lists(help, name, named.summary), "{name}: {help}");
        }
        text(&format!("plan --schedule {name} --ranks 2 --micro-batches 4"));
        let in_comparison = |row: &Value| row["schedule"] == name;
        let is_compared = compared["schedules"].as_array().expect("rows").iter().any(in_comparison);
        assert_eq!(is_compared, name != "forward-only", "{name}");
        assert_eq!(by_default.iter().any(|tried| tried == name), named.tuned, "{name}");
        assert!(documents.contains(&format!("`{name}`")), "no document names `{name}`");
    }
}

#[test]
fn every_policy_is_everywhere() {
    let (documents, profile) = (documents(), profile("policies.json", 8));
    let tune = format!("tune --profile {} --ranks 2", profile.display());
    let by_default = tried(&tune, "policy");
    let helps = ["simulate", "compare", "tune"].map(|run| text(&format!("{run} --help")));
    for named in policies() {
        let (form, example) = (named.form, named.example);
        for help in &helps {
            assert!(lists(help, form, named.summary), "{form}: {help}");
        }
        // Eight stages on a rank each, so that there are all layers that an example names.
        let run =
            format!("--ranks 8 --micro-batches 8 --activation-bytes 9 --checkpoint {example}");
        text(&format!("simulate --schedule 1f1b {run}"));
        text(&format!("compare {run}"));
        assert_eq!(by_default.iter().any(|tried| tried == named.name), named.tuned, "{form}");
        let asked = tried(
            &format!("{tune} --schedules 1f1b --micro-batches 2 --checkpoint {example}"),
            "policy",
        );
        assert!(!asked.is_empty() && asked.iter().all(|tried| tried == named.name), "{asked:?}");
        assert!(documents.contains(&format!("`{form}`")), "no document names `{form}`");
    }
}

#[test]
fn every_partitioner_is_everywhere() {
    let (documents, profile) = (documents(), profile("partitioners.json", 6));
    let tune = format!("tune --profile {} --ranks 2", profile.display());
    let helps = ["partition", "tune"].map(|run| text(&format!("{run} --help")));
    for named in partitioners() {
        let (form, example) = (named.form, named.example);
        for help in &helps {
            assert!(lists(help, form, named.summary), "{form}: {help}");
        }
        let cut = json(&format!(
            "partition --costs 1,1,1,1,1,1 --parts 2 --partitioner {example} --json"
        ));
        assert_eq!(cut["sizes"].as_array().map(Vec::len), Some(2), "{form}");
        assert_eq!(helps[1].contains(&format!("by default {form}")), named.tuned, "{form}");
        let run = format!("{tune} --schedules 1f1b --micro-batches 2 --partitioner {example}");
        assert!(!tried(&run, "schedule").is_empty(), "{form}");
        assert!(documents.contains(&format!("`{form}`")), "no document names `{form}`");
    }
}
