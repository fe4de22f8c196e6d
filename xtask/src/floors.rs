//! The floors of each crate, ground floor first: no file imports from a floor above its own. An
//! entry is a module with everything in it, or a part of one; the longest that fits counts.

use crate::tidy::Floors;

/// Crates and their floors.
pub(crate) const FLOORS: &[(&str, Floors)] = &[
    ("stovepipe", &[&["backends"]]),
    (
        "stovepipe-burn",
        &[
            // What crosses a boundary.
            &["value", "hash"],
            &["parameters", "backend"],
            &["layer", "error"],
            &["loss"],
            &["autodiff"],
            &["model"],
            &["stage"],
            &["pipeline"],
            &["profile", "conformance"],
        ],
    ),
    (
        "stovepipe-checkpoint",
        &[&["error", "activations"], &["policy"], &["lower", "named"], &["policies"]],
    ),
    (
        "stovepipe-cli",
        &[
            &["by_name", "input", "output", "shape"],
            &["check", "units"],
            &["costs", "partition", "plan", "tune"],
            &["simulate", "compare", "sweep"],
        ],
    ),
    ("stovepipe-cuda", &[]),
    ("stovepipe-emulate", &[&["stage"], &["emulation"]]),
    ("stovepipe-flex", &[]),
    (
        "stovepipe-mpi",
        &[
            &["backoff", "error", "frame", "pool", "round"],
            &["limits", "outgoing"],
            &["endpoint", "link"],
            &["incoming"],
            &["progress"],
            &["mpi"],
        ],
    ),
    (
        "stovepipe-partition",
        &[
            &["memory", "partition"],
            &["error"],
            &["costs", "fixed", "halving", "sizes"],
            &["partitioner"],
            &["named"],
            &["partitioners"],
        ],
    ),
    (
        "stovepipe-runtime",
        &[
            &["error", "rounds"],
            &["agreement", "in_flight", "reports"],
            &["compute", "job"],
            &["setup", "stages"],
            &["actions", "ending", "executor", "rank_thread", "sharing"],
            &["worker"],
            &["workers"],
        ],
    ),
    (
        "stovepipe-schedule",
        &[&["words"], &["plan"], &["program"], &["schedules"], &["simulator"], &["render"]],
    ),
    ("stovepipe-tch", &[]),
    (
        "stovepipe-transport",
        &[
            &["error", "tag", "wire"],
            &["transport", "group"],
            &["in_process"],
            &["conformance/endpoint", "conformance/threads", "conformance/posted"],
            &["conformance"],
        ],
    ),
    (
        "stovepipe-testkit",
        &[
            &["values", "vectors", "process", "ranks", "jobs", "counting_flex"],
            &["layers"],
            &["models"],
            &["pipelines"],
            &["cuts"],
        ],
    ),
    ("stovepipe-tune", &[&["messages", "report"], &["cluster", "error"], &["profile"], &["tuner"]]),
    ("stovepipe-wgpu", &[]),
];
