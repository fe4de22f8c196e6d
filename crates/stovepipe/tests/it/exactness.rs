//! Splitting changes no bit: loss, gradients and parameters against the one-stage pipeline, and the
//! gradient against plain Burn on the whole batch.

use std::collections::BTreeMap;

use stovepipe::burn::nn::LinearConfig;
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Device, Int, Tensor, TensorData};
use stovepipe::prelude::*;
use stovepipe::recompute::{
    Always, Budget, EveryLayers, ExceptLast, LayerActivations, Never, Selective, SqrtLayers,
};
use stovepipe::schedule::{Drain, GPipe, Interleaved1F1B, LayerMemory, LoopedBfs, OneFOneB, Plan};
use stovepipe_testkit::{
    Bits, CLASSES, Classifier, LinearLayers, MakePolicy, MakeSchedule, SEQ, Setup, batch, bits,
    build, floats, parameter_bits, relative_difference, toy,
};

/// Loss and gradients of each of three Adam steps, and the parameters after them.
fn train(mut pipeline: Classifier, samples: usize) -> (Vec<(u64, Bits)>, Bits) {
    let steps = (0..3).map(|step| {
        let (x, y) = batch(samples, step);
        let gradients = pipeline.gradients(x.clone(), y.clone()).expect("gradients");
        let done = pipeline.step(x, y).expect("a step");
        assert_eq!(done.loss, gradients.loss);
        (done.loss.to_bits(), bits(&gradients.gradients))
    });
    let steps = steps.collect();
    (steps, parameter_bits(&mut pipeline))
}

fn schedules() -> [(&'static str, MakeSchedule); 3] {
    [
        ("reverse", || Box::new(GPipe::default())),
        ("forward", || Box::new(GPipe::new(Drain::Forward))),
        ("forward", || Box::new(OneFOneB)),
    ]
}

fn policies() -> [MakePolicy; 3] {
    [|| Box::new(Never), || Box::new(Always), || Box::new(ExceptLast)]
}

#[test]
fn every_bit_is_that_of_one_stage() {
    for samples in [7, 8] {
        for micro_batches in [1, 2, 4, 7] {
            // The one-stage run in each order of accumulation.
            let mut expected = BTreeMap::new();
            for (order, schedule) in schedules() {
                for stages in 1..=4 {
                    for policy in policies() {
                        let setup = Setup {
                            stages,
                            stages_per_rank: 1,
                            micro_batches,
                            schedule: schedule(),
                            policy: policy(),
                            threads: 1,
                        };
                        let what = format!(
                            "{} {} at {stages}x{micro_batches}, {samples} samples",
                            schedule().name(),
                            policy().name()
                        );
                        let found = train(build(setup), samples);
                        let reference = expected.entry(order).or_insert_with(|| found.clone());
                        assert!(found == *reference, "other bits: {what}");
                    }
                }
            }
        }
    }
}

#[test]
fn several_stages_on_a_rank_change_no_bit() {
    // Each order of accumulation against one stage; two and three stages on each rank.
    let interleaved: MakeSchedule = || Box::new(Interleaved1F1B);
    let looped: MakeSchedule = || Box::new(LoopedBfs::default());
    let one_stage: [MakeSchedule; 2] = [|| Box::new(OneFOneB), || Box::new(GPipe::default())];
    for micro_batches in [1, 3, 4, 7] {
        for (schedule, reference) in [interleaved, looped].into_iter().zip(one_stage) {
            let run = |stages, stages_per_rank, schedule: Box<dyn Schedule>, policy| {
                let setup =
                    Setup { stages, stages_per_rank, micro_batches, schedule, policy, threads: 1 };
                train(build(setup), 7)
            };
            let expected = run(1, 1, reference(), Box::new(Never));
            for (stages, stages_per_rank) in [(2, 2), (4, 2), (6, 2), (6, 3)] {
                for policy in policies() {
                    let what =
                        format!("{stages} stages, {stages_per_rank} on a rank, {micro_batches}");
                    assert!(
                        run(stages, stages_per_rank, schedule(), policy()) == expected,
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn segments_of_a_stage_are_rebuilt_one_by_one_to_the_same_bits() {
    let costs = |bytes| {
        let memory = LayerMemory { activations: bytes, input: 10, ..Default::default() };
        let layer = LayerActivations { memory, recompute: 1.0 };
        vec![layer; toy().len()]
    };
    let policies: [MakePolicy; 4] = [
        || Box::new(EveryLayers::new(1)),
        || Box::new(EveryLayers::new(2)),
        || Box::new(SqrtLayers),
        || Box::new(Selective::new([1, 2, 5])),
    ];
    for schedule in [schedules()[0].1, schedules()[2].1] {
        let run = |stages, policy: Box<dyn CheckpointPolicy>| {
            let schedule = schedule();
            train(
                build(Setup { stages, micro_batches: 4, schedule, policy, ..Setup::default() }),
                7,
            )
        };
        let expected = run(1, Box::new(Never));
        for stages in 1..=4 {
            for policy in policies {
                assert!(run(stages, policy()) == expected, "{} {stages}", policy().name());
            }
            // Some layers dropped, some kept.
            let budget = Budget::new(4 * 7 * 60 / stages as u64 + 400, costs(100));
            assert!(run(stages, Box::new(budget)) == expected, "budget {stages}");
        }
    }
}

#[test]
fn plans_by_hand_run_with_the_recomputation_they_place() {
    let rows = ["0F0 0F1 0F2 0R1 0B0 0R2 0B1 0B2", "1F0 1B0 1F1 1R1 1B1 1F2 1B2"];
    let plan = Plan::parse(rows.map(str::split_whitespace)).expect("a plan");
    let run = |stages, schedule: Box<dyn Schedule>| {
        train(build(Setup { stages, micro_batches: 3, schedule, ..Setup::default() }), 7)
    };
    assert!(run(2, Box::new(plan)) == run(1, Box::new(OneFOneB)));
}

#[test]
fn threads_change_no_bit() {
    let run = |threads| {
        train(build(Setup { stages: 2, micro_batches: 3, threads, ..Setup::default() }), 8)
    };
    assert!(run(1) == run(3));
}

#[test]
fn the_gradient_is_that_of_the_whole_batch() {
    for samples in [7, 8] {
        let (x, y) = batch(samples, 0);
        let whole = build(Setup::default()).gradients(x.clone(), y.clone()).expect("gradients");
        for (stages, micro_batches) in
            [1, 2, 3, 4].into_iter().flat_map(|k| [2, 4, 7].map(|m| (k, m)))
        {
            let mut pipeline = build(Setup { stages, micro_batches, ..Setup::default() });
            let split = pipeline.gradients(x.clone(), y.clone()).expect("gradients");
            let difference = relative_difference(&split.gradients, &whole.gradients);
            assert!(difference < 1e-5, "{stages} stages, {micro_batches}: {difference}");
            assert!((split.loss - whole.loss).abs() < 1e-6);
        }
    }
}

#[test]
fn the_gradient_is_that_of_plain_burn() {
    // The same model written as one function, parameters taken from the pipeline.
    let x = floats([6, 3]);
    let y = floats([6, 2]);
    let model = Sequential::<Tensor<2>>::new()
        .linear("up", 3, 4)
        .push_fn("square", |x: Tensor<2>| x.powi_scalar(2))
        .linear("down", 4, 2);
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(4)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(MeanSquaredError)
        .build()
        .expect("a pipeline");
    let parameters = pipeline.parameters().expect("parameters");
    let device = Device::flex().autodiff();
    let matrix =
        |name: &str| Tensor::<2>::from_data(parameters[name].clone(), &device).require_grad();
    let vector =
        |name: &str| Tensor::<1>::from_data(parameters[name].clone(), &device).require_grad();
    let (w1, b1, w2, b2) =
        (matrix("up.weight"), vector("up.bias"), matrix("down.weight"), vector("down.bias"));
    let hidden =
        (Tensor::from_inner(x.clone()).matmul(w1.clone()) + b1.clone().unsqueeze()).powi_scalar(2);
    let output = hidden.matmul(w2.clone()) + b2.clone().unsqueeze();
    let loss = (output - Tensor::from_inner(y.clone())).powi_scalar(2).mean();
    let grads = loss.backward();
    let mut expected = BTreeMap::<String, TensorData>::new();
    for (name, gradient) in [("up.weight", w1.grad(&grads)), ("down.weight", w2.grad(&grads))] {
        expected.insert(name.to_owned(), gradient.expect("a gradient").into_data());
    }
    for (name, gradient) in [("up.bias", b1.grad(&grads)), ("down.bias", b2.grad(&grads))] {
        expected.insert(name.to_owned(), gradient.expect("a gradient").into_data());
    }
    let found = pipeline.gradients(x.clone(), y.clone()).expect("gradients");
    let difference = relative_difference(&found.gradients, &expected);
    assert!(difference < 1e-5, "{difference}");
    assert!((found.loss - f64::from(loss.into_scalar::<f32>())).abs() < 1e-6);

    // And plain gradient descent moves the parameters by it.
    pipeline.step(x, y).expect("a step");
    let after = pipeline.parameters().expect("parameters");
    for (name, gradient) in &expected {
        let moved = after[name].iter::<f64>().zip(parameters[name].iter::<f64>());
        for ((after, before), gradient) in moved.zip(gradient.iter::<f64>()) {
            assert!((after - (before - 0.1 * gradient)).abs() < 1e-6, "{name}");
        }
    }
}

#[test]
fn losses_are_averaged_over_the_mini_batch() {
    // Two weights of 1, input 1, target 0, two micro-batches, rate 0.1: the first weight must be
    // 0.8. A peer added the micro-batches' gradients up instead.
    let ones = |device: &Device| {
        let mut linear = LinearConfig::new(1, 1).with_bias(false).init(device);
        linear.weight = linear.weight.map(|w| w.ones_like().require_grad());
        linear
    };
    let model = Sequential::<Tensor<2>>::new()
        .push_module("first", ones, |m, x: Tensor<2>| m.forward(x))
        .push_module("second", ones, |m, x: Tensor<2>| m.forward(x));
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(2)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(MeanSquaredError)
        .build()
        .expect("a pipeline");
    let device = Device::flex();
    let done = pipeline
        .step(Tensor::ones([2, 1], &device), Tensor::zeros([2, 1], &device))
        .expect("a step");
    assert_eq!((done.loss, done.weight, done.micro_batches), (1.0, 2.0, 2));
    let weight: Vec<f32> =
        pipeline.parameters().expect("parameters")["first.weight"].iter::<f32>().collect();
    assert!((weight[0] - 0.8).abs() < 1e-7, "{weight:?}");
}

#[test]
fn a_weight_used_twice_gets_both_gradients() {
    // x·w·w with numbers for which a peer counted one use twice.
    let device = Device::flex();
    let model = Sequential::<Tensor<2>>::new()
        .push_module(
            "twice",
            |device| {
                let mut linear = LinearConfig::new(2, 2).with_bias(false).init(device);
                linear.weight = linear.weight.map(|w| {
                    Tensor::<2>::from_data([[0.4, -0.2], [0.7, 0.3]], &w.device()).require_grad()
                });
                linear
            },
            |m, x: Tensor<2>| m.forward(m.forward(x)),
        )
        .push_fn("same", |x: Tensor<2>| x);
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(1)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(|output: Tensor<2>, _: Tensor<2>| stovepipe::LossSum::new(output.sum(), 1.0))
        .build()
        .expect("a pipeline");
    let x = Tensor::<2>::from_data([[1.1, -0.7]], &device);
    let found = pipeline.gradients(x, Tensor::zeros([1, 1], &device)).expect("gradients");
    // d(sum(x·w·w))/dw = xᵀ·(1·wᵀ) + (x·w)ᵀ·1 with w·1 = (0.2, 1.0), x·w = (-0.05, -0.43).
    let expected = [1.1 * 0.2 - 0.05, 1.1 * 1.0 - 0.05, -0.7 * 0.2 - 0.43, -0.7 * 1.0 - 0.43];
    for (found, expected) in found.gradients["twice.weight"].iter::<f64>().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn small_and_uneven_batches_use_what_they_have() {
    for (samples, asked, used) in [(7, 4, 4), (2, 4, 2), (5, 4, 4), (8, 3, 3)] {
        for policy in policies() {
            let mut pipeline = build(Setup {
                stages: 3,
                micro_batches: asked,
                policy: policy(),
                ..Setup::default()
            });
            let (x, y) = batch(samples, 0);
            let done = pipeline.step(x, y).expect("a step");
            assert_eq!(done.micro_batches, used);
            assert_eq!(done.weight, (samples * SEQ) as f64);
            // As in one piece.
            let mut whole = build(Setup::default());
            let (x, y) = batch(samples, 0);
            assert!((whole.step(x, y).expect("a step").loss - done.loss).abs() < 1e-6);
            let (found, expected) = (pipeline.parameters(), whole.parameters());
            let (found, expected) = (found.expect("parameters"), expected.expect("parameters"));
            assert!(relative_difference(&found, &expected) < 1e-4, "{samples} {asked}");
        }
    }
}

#[test]
fn training_evaluation_and_prediction_in_any_order() {
    let mut pipeline = build(Setup { stages: 2, micro_batches: 3, ..Setup::default() });
    let mut same = build(Setup { stages: 1, micro_batches: 3, ..Setup::default() });
    let (x, y) = batch(7, 0);
    let before = pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss;
    assert_eq!(pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss, before);
    let trained = pipeline.step(x.clone(), y.clone()).expect("a step").loss;
    assert!((trained - before).abs() < 1e-6);
    let output = pipeline.predict(x.clone()).expect("predicts");
    assert_eq!(output.dims(), [7, SEQ, CLASSES]);
    assert!(pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss < before);
    pipeline.step(x.clone(), y.clone()).expect("a step");
    // Looking at it changed nothing.
    for _ in 0..2 {
        same.step(x.clone(), y.clone()).expect("a step");
    }
    let (a, b) =
        (pipeline.parameters().expect("parameters"), same.parameters().expect("parameters"));
    assert!(bits(&a) == bits(&b));
}

#[test]
fn initial_parameters_depend_on_seed_and_name_only() {
    let parameters = |stages| {
        build(Setup { stages, micro_batches: 4, ..Setup::default() })
            .parameters()
            .expect("parameters")
    };
    let whole = parameters(1);
    assert_eq!(whole.len(), 19);
    assert!(whole.contains_key("attention.query.weight"), "{:?}", whole.keys());
    assert!(bits(&whole) == bits(&parameters(4)));
    // Other layers of the same shape start elsewhere.
    assert_ne!(whole["fork.left.weight"].as_bytes(), whole["join.out.weight"].as_bytes());
}

#[test]
fn token_ids_travel_as_integers() {
    let model = Sequential::<Tensor<2, Int>>::new()
        .push_fn("shift", |ids: Tensor<2, Int>| ids + 1)
        .push_fn("float", |ids: Tensor<2, Int>| ids.float());
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(2)
        .build()
        .expect("a pipeline");
    let ids = Tensor::<2, Int>::from_data([[1, 2], [3, 4], [5, 6]], &Device::flex());
    let output = pipeline.predict(ids).expect("predicts");
    assert_eq!(output.to_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[test]
fn a_view_crosses_a_boundary_as_its_copy() {
    // A sum over a view differs in the last bits from that over its copy. What another device or
    // process gets is a copy, so that a layer must see one always.
    // Of all magnitudes, so that the order of the sum is sure to show.
    let value = |i: usize| (i as f32).sin() * 10f32.powi((i % 9) as i32);
    let values: Vec<f32> = (0..2 * 53 * 37).map(value).collect();
    let x = Tensor::<3>::from_data(TensorData::new(values, [2, 53, 37]), &Device::flex());
    let copy = Tensor::<3>::from_data(x.clone().swap_dims(1, 2).into_data(), &x.device());
    let sum = |x: Tensor<3>| x.zeros_like() + x.sum().reshape([1, 1, 1]);
    let expected = sum(copy).into_data();
    assert!(
        sum(x.clone().swap_dims(1, 2)).into_data().as_bytes() != expected.as_bytes(),
        "the test would see nothing"
    );
    for stages in [1, 2] {
        let model = Sequential::<Tensor<3>>::new()
            .push_fn("swap", |x: Tensor<3>| x.swap_dims(1, 2))
            .push_fn("sum", sum);
        let mut pipeline = Pipeline::builder(model)
            .backend(Flex::new())
            .stages(stages)
            .micro_batches(1)
            .build()
            .expect("a pipeline");
        let found = pipeline.predict(x.clone()).expect("predicts").into_data();
        assert!(found.as_bytes() == expected.as_bytes(), "{stages} stages");
    }
}

#[test]
fn initial_parameters_do_not_depend_on_other_threads() {
    // Burn's generator is process-wide: somebody else draws from it now and then.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let noise = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = floats([2]);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let parameters = || parameter_bits(&mut build(Setup::default()));
    let first = parameters();
    let all_equal = (0..20).all(|_| parameters() == first);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    noise.join().expect("no panic");
    assert!(all_equal);
}
