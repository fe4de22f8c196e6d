//! Profiles: what is checked, read and written.

use stovepipe_schedule::LayerMemory;

use super::*;

fn measurement(samples: usize, seconds: f64) -> Measurement {
    Measurement {
        samples,
        forward: Time::exactly(seconds),
        recompute: Time::exactly(seconds),
        backward: Time { median: 2.0 * seconds, spread: 0.1 },
        input_bytes: 10,
        output_bytes: 10 * samples as u64,
        memory: Some(LayerMemory { activations: 100 * samples as u64, ..LayerMemory::default() }),
    }
}

fn layer(measurements: Vec<Measurement>) -> LayerProfile {
    LayerProfile {
        name: "layer".to_owned(),
        parameter_bytes: 1,
        gradient_bytes: 2,
        optimizer_bytes: 3,
        update_bytes: 4,
        staged_bytes: 5,
        update: Time::default(),
        measurements,
    }
}

#[test]
fn sizes_between_the_measured_ones_are_on_a_straight_line() {
    let layers = vec![layer(vec![measurement(2, 1.0), measurement(4, 2.0), measurement(12, 3.0)])];
    let profile = Profile::new("test", layers).expect("valid");
    let at = |samples| profile.at(samples).map(|costs| costs[0]);
    assert_eq!(at(2).map(|c| (c.forward, c.output_bytes)), Some((1.0, 20)));
    assert_eq!(at(3).map(|c| (c.backward, c.output_bytes)), Some((3.0, 30)));
    let kept = |cost: LayerCost| cost.memory.map(|memory| memory.activations);
    assert_eq!(at(8).map(|c| (c.recompute, kept(c))), Some((2.5, Some(800))));
    assert_eq!(at(12).map(|c| c.forward), Some(3.0));
    assert_eq!((at(1), at(13)), (None, None));
}

#[test]
fn files_go_both_ways_and_are_checked() {
    let profile = Profile::new("test", vec![layer(vec![measurement(1, 0.5)])]).expect("valid");
    let profile = profile.with_workspace(6);
    let text = profile.to_json().expect("writes");
    assert_eq!(Profile::from_json(&text).expect("reads"), profile);

    let error = |text: &str| Profile::from_json(text).expect_err("refused").to_string();
    let newer = text.replace("\"version\": 2", "\"version\": 3");
    assert_eq!(
        error(&newer),
        "the profile has version 3, this program reads version 2: measure again"
    );
    assert!(error("").starts_with("this is no profile"));
    assert!(error(&text.replace("0.5", "-0.5")).contains("a time of -0.5 s"));
    assert!(
        error(r#"{"version": 2, "device": "", "workspace_bytes": 0, "layers": []}"#)
            .contains("no layers")
    );
}

#[test]
fn files_keep_their_form() {
    let measured = layer(vec![measurement(1, 0.5)]);
    let text = Profile::new("test", vec![measured]).expect("valid").to_json().expect("writes");
    let text: String = text.split_whitespace().collect();
    let measurement = r#"{"samples":1,"forward":{"median":0.5,"spread":0.0},
        "recompute":{"median":0.5,"spread":0.0},"backward":{"median":1.0,"spread":0.1},
        "input_bytes":10,"output_bytes":10,"memory":{"activation_bytes":100,
        "forward_bytes":0,"untaped_bytes":0,"backward_bytes":0}}"#;
    let expected = format!(
        r#"{{"version":2,"device":"test","workspace_bytes":0,"layers":[{{"name":"layer",
        "parameter_bytes":1,"gradient_bytes":2,"optimizer_bytes":3,"update_bytes":4,
        "staged_bytes":5,"update":{{"median":0.0,"spread":0.0}},
        "measurements":[{measurement}]}}]}}"#
    );
    let expected: String = expected.split_whitespace().collect();
    assert_eq!(text, expected);
}

#[test]
fn all_layers_are_measured_at_the_same_sizes() {
    let refused = |layers| Profile::new("test", layers).expect_err("refused").to_string();
    assert!(refused(vec![layer(vec![])]).contains("sizes []"));
    assert!(refused(vec![layer(vec![measurement(0, 1.0)])]).contains("from 1 on"));
    let twice = vec![measurement(2, 1.0), measurement(2, 1.0)];
    assert!(refused(vec![layer(twice)]).contains("ascending"));
    let (a, b) = (layer(vec![measurement(1, 1.0)]), layer(vec![measurement(2, 1.0)]));
    assert!(refused(vec![a, b]).contains("other sizes"));
}
