//! Profiles hold what is measured of a model, and measuring it leaves no trace.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::transport::InProcess;
use stovepipe::tune::{Cluster, MessageCosts, Profile, SkipProfile, Time, Tuner};
use stovepipe::{
    Builder, MemoryCounter, Packet, ProfileError, Profiling, Rehearsal, measure_messages,
};
use stovepipe_testkit::{
    CLASSES, DIM, Down, LinearLayers, SEQ, Tokens, Up, batch, classifier, embed, parameter_bits,
    toy,
};

type ToyBuilder = Builder<Tokens, Tensor<3>, Tokens>;

fn builder() -> ToyBuilder {
    classifier(toy()).backend(Flex::new()).stages(2).micro_batches(2)
}

fn measure(profiling: &Profiling) -> Profile {
    let (x, y) = batch(4, 0);
    builder().profile(profiling, x, y).expect("a profile")
}

#[test]
fn bytes_are_those_of_the_layers() {
    let profile = measure(&Profiling::new([4, 1]).runs(3).warm_up(1));
    let names: Vec<&str> = profile.layers().iter().map(|layer| &*layer.name).collect();
    assert_eq!(names, ["embed", "attention", "fork", "join", "gelu", "norm", "head"]);
    assert_eq!(profile.sizes().collect::<Vec<_>>(), [1, 4]);
    assert!(!profile.knows_memory());

    let layer = |name: &str| {
        profile.layers().iter().find(|layer| layer.name == name).expect("it is listed")
    };
    let floats = |count: usize| 4 * count as u64;
    let head = layer("head");
    assert_eq!(head.parameter_bytes, floats(DIM * CLASSES + CLASSES));
    assert_eq!(head.gradient_bytes, head.parameter_bytes);
    // Adam keeps two moments for each parameter, and a little to name them.
    assert!(head.optimizer_bytes >= 2 * head.parameter_bytes);
    let of_four = &head.measurements[1];
    assert_eq!(of_four.input_bytes, floats(4 * SEQ * DIM));
    assert_eq!(of_four.output_bytes, floats(4 * SEQ * CLASSES));
    let gelu = layer("gelu");
    assert_eq!((gelu.parameter_bytes, gelu.gradient_bytes, gelu.optimizer_bytes), (0, 0, 0));
    for measurement in profile.layers().iter().flat_map(|layer| &layer.measurements) {
        assert!(measurement.forward.median > 0.0 && measurement.backward.median > 0.0);
    }
}

#[test]
fn what_does_not_train_has_no_backward() {
    let linear = |d: &Device| LinearConfig::new(DIM, DIM).init(d);
    let frozen = move |d: &Device| linear(d).no_grad();
    let model = Sequential::<Tensor<2>>::new()
        .push_module("frozen", frozen, |m: &Linear, x: Tensor<2>| m.forward(x))
        .push_fn("gelu", |x: Tensor<2>| x.tanh())
        .push_module("head", linear, |m: &Linear, x: Tensor<2>| m.forward(x))
        .push_module("frozen too", frozen, |m: &Linear, x: Tensor<2>| m.forward(x));
    let builder = Pipeline::builder(model).loss(MeanSquaredError).backend(Flex::new());
    let x = || Tensor::<2>::ones([4, DIM], &Device::flex());
    let profile = builder.profile(&Profiling::new([4]).runs(3), x(), x()).expect("a profile");
    let has_backward = profile.layers().iter().map(|l| l.measurements[0].backward.median > 0.0);
    assert_eq!(has_backward.collect::<Vec<_>>(), [false, false, true, true]);
    assert!(profile.layers().iter().all(|l| l.measurements[0].forward.median > 0.0));
}

/// Finds a thousand bytes more whenever it is asked, and knows no peaks.
#[derive(Default)]
struct Growing(AtomicU64);

impl MemoryCounter for Growing {
    fn live_bytes(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
}

#[test]
fn where_peaks_are_unknown_what_a_forward_leaves_behind_stands_for_them() {
    let profile = measure(&Profiling::new([1, 4]).runs(1).memory(Growing::default()));
    assert!(profile.knows_memory());
    for layer in profile.layers() {
        for measured in &layer.measurements {
            let memory = measured.memory.expect("known");
            let own = 1000u64.saturating_sub(measured.output_bytes);
            assert_eq!(memory.activations, own + measured.input_bytes, "{}", layer.name);
            let peaks = [memory.forward, memory.untaped, memory.backward];
            assert_eq!(peaks, [1000; 3], "{}", layer.name);
        }
    }
    let (x, y) = batch(4, 0);
    let refused = builder().rehearse(&Rehearsal::new(0, Growing::default()), x, y);
    let refused = refused.expect_err("there is no peak to tell").to_string();
    assert!(refused.contains("can't tell"), "{refused}");
}

#[test]
fn skips_are_measured_where_they_pass_by_layers() {
    let model = || {
        let down = embed().push("down", Down::at("x")).push("inner", Down::at("y"));
        down.push("outer", Up::at("y")).push("up", Up::at("x")).head()
    };
    // However few layers are measured at a time.
    for together in [1, 7] {
        let profiling = Profiling::new([1, 4]).runs(1).together(together);
        let (x, y) = batch(4, 0);
        let builder = classifier(model()).backend(Flex::new());
        let profile = builder.profile(&profiling, x, y).expect("a profile");
        // Each a value of a sequence, and one that nobody uses.
        let each = (4 * (DIM * SEQ + 1)) as u64;
        let first = profile.layers().iter().position(|layer| layer.name == "down");
        let first = first.expect("it is measured");
        let skip = |from, to| SkipProfile { from, to, bytes: vec![each, 4 * each] };
        let mut skips = profile.skips().to_vec();
        skips.sort_by_key(|skip| skip.from);
        assert_eq!(skips, [skip(first, first + 3), skip(first + 1, first + 2)]);
    }
}

#[test]
fn all_ranks_know_what_messages_take() {
    let measured: Vec<MessageCosts> = std::thread::scope(|scope| {
        let group = InProcess::<Packet>::group(3);
        let ranks: Vec<_> = group
            .into_iter()
            .map(|endpoint| {
                scope.spawn(move || measure_messages(&endpoint, &Device::flex()).expect("measures"))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert!(measured.iter().all(|costs| *costs == measured[0]));
    let handling = measured[0].of(4 << 20);
    assert!(handling.send.is_finite() && handling.receive.is_finite());
    let alone = InProcess::<Packet>::group(1).remove(0);
    let none = measure_messages(&alone, &Device::flex()).expect("measures");
    assert_eq!(none, MessageCosts::default());
}

#[test]
fn measuring_leaves_no_trace() {
    let parameters =
        |builder: ToyBuilder| parameter_bits(&mut builder.build().expect("a pipeline"));
    let measured = builder();
    let (x, y) = batch(4, 0);
    measured.profile(&Profiling::new([2]).runs(1), x, y).expect("a profile");
    assert!(parameters(measured) == parameters(builder()));
}

#[test]
fn other_ranks_run_the_same_layers_meanwhile() {
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let seen = Arc::clone(&threads);
    let model = Sequential::<Tensor<2>>::new().push_module(
        "layer",
        |device| LinearConfig::new(2, 2).init(device),
        move |layer: &Linear, x: Tensor<2>| {
            // Until both threads have been here, or for too long.
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(30) {
                let mut threads = seen.lock().expect("no panic");
                threads.insert(std::thread::current().id());
                if threads.len() > 1 {
                    break;
                }
                drop(threads);
                std::thread::sleep(Duration::from_millis(1));
            }
            layer.forward(x)
        },
    );
    let x = Tensor::<2>::ones([2, 2], &Device::flex());
    let builder = Pipeline::builder(model).backend(Flex::new()).loss(MeanSquaredError);
    let profiling = Profiling::new([2]).runs(1).warm_up(0).busy_ranks(1);
    builder.profile(&profiling, x.clone(), x).expect("a profile");
    assert_eq!(threads.lock().expect("no panic").len(), 2);
}

#[test]
fn progress_is_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = Arc::clone(&told);
    let profiling = Profiling::new([2]).runs(1).progress(move |name, number, of| {
        teller.lock().expect("no panic").push(format!("{number}/{of} {name}"));
    });
    measure(&profiling);
    let told = told.lock().expect("no panic");
    assert_eq!((told.len(), &*told[0], &*told[6]), (7, "1/7 embed", "7/7 head"));
}

#[test]
fn a_profile_feeds_the_tuner() {
    let profile = measure(&Profiling::new([1, 2, 4]).runs(3));
    let read = Profile::from_json(&profile.to_json().expect("writes")).expect("reads");
    assert_eq!(read.layers().len(), profile.layers().len());
    for (read, layer) in read.layers().iter().zip(profile.layers()) {
        assert_eq!((&read.name, read.optimizer_bytes), (&layer.name, layer.optimizer_bytes));
        // Decimal digits come back to within the last bit.
        let (found, expected) = (read.update.median, layer.update.median);
        assert!((found - expected).abs() <= 1e-12 * expected, "{found} and {expected}");
    }
    let report = Tuner::new(&read, &Cluster::new(2)).batch(4).tune().expect("everything fits");
    assert_eq!(report.best().partition.layers(), 7);

    // Every choice runs as it was chosen.
    let train = |choice| {
        let mut pipeline = builder().tune(choice).build().expect("a pipeline");
        let (x, y) = batch(4, 0);
        let done = pipeline.step(x, y).expect("a step");
        assert_eq!(done.micro_batches, choice.configuration.micro_batches);
        assert_eq!(pipeline.partition(), &choice.partition);
        assert_eq!(done.timeline.ranks(), choice.configuration.ranks);
        pipeline.parameters().expect("parameters").len()
    };
    assert!(report.choices.len() > 10);
    for choice in &report.choices {
        assert_eq!(train(choice), 19, "{}", choice.configuration);
    }
}

#[test]
fn layers_are_cut_by_what_was_measured() {
    // As if the first layer took as long as all others together.
    let measured = measure(&Profiling::new([2]).runs(1));
    let layers = measured.layers().iter().enumerate().map(|(index, layer)| {
        let mut layer = layer.clone();
        for measurement in &mut layer.measurements {
            measurement.forward = Time::exactly(if index == 0 { 6.0 } else { 1.0 });
            measurement.backward = measurement.forward;
        }
        layer
    });
    let profile = Profile::new("uneven", layers.collect()).expect("valid");
    let pipeline =
        builder().layer_costs(profile.times(2).expect("measured")).build().expect("a pipeline");
    assert_eq!(pipeline.partition().sizes(), [1, 6]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let refused = |sizes: &[usize]| {
        let (x, y) = batch(4, 0);
        builder().profile(&Profiling::new(sizes), x, y).expect_err("refused")
    };
    for sizes in [&[][..], &[0, 1], &[5]] {
        assert!(matches!(refused(sizes), ProfileError::Sizes { samples: 4, .. }), "{sizes:?}");
    }
    let (x, y) = batch(4, 0);
    let without = Pipeline::builder(toy()).backend(Flex::new()).loss(CrossEntropy);
    // Without an optimizer nothing keeps it from being measured as plain gradient descent.
    assert!(without.profile(&Profiling::new([1]).runs(1), x, y).is_ok());
    let (x, y) = batch(4, 0);
    let error = Pipeline::builder(toy()).loss(CrossEntropy).profile(&Profiling::new([1]), x, y);
    assert!(error.expect_err("no backend").to_string().contains(".backend("));
}
