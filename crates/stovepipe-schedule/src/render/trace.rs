//! Timelines in the trace event format that Perfetto and Chrome's `about:tracing` open.

use serde_json::{Value, json};

use crate::simulator::timeline::Timeline;
use crate::words::action::Action;
use crate::words::compute::ComputeKind;

/// One process per timeline, in it one thread per rank; categories tell forward, recompute,
/// backward and communication apart. `seconds_per_unit` turns the timeline's unit into seconds (1
/// for measured timelines).
#[must_use]
pub fn render_trace(timelines: &[(&str, &Timeline)], seconds_per_unit: f64) -> String {
    // The format counts in microseconds.
    let micros = |time: f64| time * seconds_per_unit * 1e6;
    let mut events: Vec<Value> = Vec::new();
    // From 1 on: tools take process and thread 0 for the idle task.
    for (process, (name, timeline)) in (1..).zip(timelines) {
        events.push(json!({
            "name": "process_name", "ph": "M", "pid": process, "args": {"name": name},
        }));
        for rank in 0..timeline.ranks() {
            let thread = rank + 1;
            events.push(json!({
                "name": "thread_name", "ph": "M", "pid": process, "tid": thread,
                "args": {"name": format!("rank {rank}")},
            }));
            for span in timeline.spans(rank) {
                events.push(json!({
                    "name": span.action.to_string(), "cat": category(&span.action), "ph": "X",
                    "pid": process, "tid": thread,
                    "ts": micros(span.start), "dur": micros(span.duration()),
                    "args": {
                        "stage": span.action.stage(), "micro_batch": span.action.micro_batch(),
                    },
                }));
            }
            if let Some(update) = timeline.update(rank) {
                events.push(json!({
                    "name": "update", "cat": "update", "ph": "X", "pid": process, "tid": thread,
                    "ts": micros(update.start), "dur": micros(update.end - update.start),
                }));
            }
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
}

fn category(action: &Action) -> &'static str {
    match action {
        Action::Compute(compute) => match compute.kind {
            ComputeKind::Forward => "forward",
            ComputeKind::Recompute => "recompute",
            ComputeKind::Backward | ComputeKind::BackwardInput | ComputeKind::BackwardWeight => {
                "backward"
            }
        },
        Action::Send(_) | Action::Recv(_) => "communication",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CostModel, Edges, OneFOneB, Program, Retention, Schedule, Shape, simulate};

    #[test]
    fn the_trace_holds_every_span_in_microseconds() {
        let plan = OneFOneB.plan(Shape::new(2, 2)).expect("a plan");
        let program =
            Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan)).expect("lowers");
        let timeline = simulate(&program, &CostModel::uniform(2, 1.0, 2.0)).expect("simulates");
        let trace: Value =
            serde_json::from_str(&render_trace(&[("run", &timeline)], 1e-3)).expect("json");
        let events = trace["traceEvents"].as_array().expect("events");
        let find = |name: &str| events.iter().find(|e| e["name"] == name).expect("the event");
        assert_eq!(find("1F0")["ts"], 1000.0);
        assert_eq!((&find("1F0")["pid"], &find("1F0")["tid"]), (&json!(1), &json!(2)));
        assert!(events.iter().all(|e| e["pid"] != 0 && e["tid"] != 0));
        assert_eq!(find("1F0")["dur"], 1000.0);
        assert_eq!(find("1F0")["cat"], "forward");
        assert_eq!(find("0SEND_F0")["cat"], "communication");
        assert_eq!(events.iter().filter(|e| e["cat"] == "backward").count(), 4);
    }
}
