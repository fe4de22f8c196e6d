//! Training means the same however it is split: dropout, clipping, weights, frozen
//! parameters and accumulated mini-batches, each against one stage, bit for bit.

use stovepipe::burn::grad_clipping::GradientClippingConfig;
use stovepipe::burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use stovepipe::burn::module::{Module, ParamGroup};
use stovepipe::burn::nn::{DropoutConfig, EmbeddingConfig, LinearConfig};
use stovepipe::burn::optim::decay::WeightDecayConfig;
use stovepipe::burn::optim::{AdamConfig, SgdConfig};
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::{Always, Layout, Never, PolicyError};
use stovepipe::schedule::Retention;
use stovepipe::{BuildError, Builder};
use stovepipe_testkit::{
    CLASSES, DIM, LinearLayers, SEQ, Tokens, adam, batch, classifier, embed, floats, on_one_stage,
    parameter_bits, relative_difference, same_on_any_cut, toy, train,
};

fn with_dropout() -> Sequential<Tokens, Tensor<3>> {
    embed()
        .push_fn_with_context("first", |x: Tensor<3>, context| context.dropout(x, 0.3))
        .linear("up", DIM, DIM)
        .push_fn_with_context("twice", |x: Tensor<3>, context| {
            let noise = context.normal(&x) * 0.1;
            context.dropout(x, 0.2) + noise
        })
        .head()
}

#[test]
fn dropout_is_the_same_however_it_is_split() {
    let builder = || classifier(with_dropout());
    let (losses, _) = same_on_any_cut(builder, train);
    // It isn't nothing: evaluation leaves it out, and steps draw anew.
    let mut pipeline = on_one_stage(builder());
    let (x, y) = batch(7, 0);
    let evaluated = pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss;
    assert!((losses[0] - evaluated).abs() > 1e-4);
    let first = pipeline.gradients(x.clone(), y.clone()).expect("gradients").loss;
    assert_eq!(first, losses[0]);
    pipeline.step(batch(7, 5).0, batch(7, 5).1).expect("a step");
    let frozen = builder().learning_rate(0.0);
    let mut frozen = frozen.backend(Flex::new()).micro_batches(3).seed(11).build().expect("builds");
    let steps: Vec<f64> =
        (0..2).map(|_| frozen.step(x.clone(), y.clone()).expect("a step").loss).collect();
    assert_ne!(steps[0], steps[1]);
}

#[test]
fn dropout_does_not_depend_on_the_number_of_micro_batches() {
    let loss = |micro_batches| {
        let builder = classifier(with_dropout());
        let mut pipeline =
            builder.backend(Flex::new()).micro_batches(micro_batches).build().expect("builds");
        let (x, y) = batch(8, 0);
        pipeline.gradients(x, y).expect("gradients").loss
    };
    for micro_batches in [2, 3, 8] {
        assert!((loss(micro_batches) - loss(1)).abs() < 1e-6);
    }
}

/// Recomputes everything of a batch with fewer than two micro-batches.
struct AlwaysWhenSmall;

impl CheckpointPolicy for AlwaysWhenSmall {
    fn name(&self) -> &str {
        "always-when-small"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        if layout.plan().micro_batches() < 2 {
            Always.retention(layout)
        } else {
            Never.retention(layout)
        }
    }
}

#[test]
fn what_cannot_be_run_twice_is_not_recomputed() {
    let build = |policy: Box<dyn CheckpointPolicy>, allow: bool| {
        let model = Sequential::<Tensor<2>>::new().linear("up", 3, 3).push_module(
            "drop",
            |_| DropoutConfig::new(0.5).init(),
            |m, x: Tensor<2>| m.forward(x),
        );
        let builder = Pipeline::builder(model).backend(Flex::new()).stages(2).micro_batches(2);
        let builder = builder.checkpoint(policy).loss(MeanSquaredError);
        let builder = builder.optimizer(SgdConfig::new().init()).learning_rate(0.1);
        if allow { builder.allow_unreplayable("drop") } else { builder }.build()
    };
    assert!(build(Box::new(Never), false).is_ok());
    assert!(build(Box::new(Always), true).is_ok());
    // What a policy does to a smaller batch is looked at when it comes.
    let mut later = build(Box::new(AlwaysWhenSmall), false).expect("builds");
    let x = |samples: usize| floats([samples, 3]);
    later.step(x(2), x(2)).expect("keeps all");
    let error = later.step(x(1), x(1)).expect_err("refused").to_string();
    assert!(error.contains("layer `drop` is recomputed"), "{error}");
    let error = build(Box::new(Always), false).err().expect("refused");
    assert!(matches!(error, BuildError::Unreplayable { .. }));
    let text = error.to_string();
    for part in ["layer `drop`", "Dropout", "context.dropout", "allow_unreplayable(\"drop\")"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn clipping_by_norm_looks_at_all_stages() {
    let sgd = |clipping: Option<Clipping>| {
        move || {
            let builder = Pipeline::builder(toy()).loss(CrossEntropy);
            let builder = builder.optimizer(SgdConfig::new().init()).learning_rate(0.5);
            match clipping {
                Some(clipping) => builder.clip_gradients(clipping),
                None => builder,
            }
        }
    };
    let (x, y) = batch(7, 0);
    let gradients =
        on_one_stage(sgd(None)()).gradients(x.clone(), y.clone()).expect("gradients").gradients;
    let squares = gradients.values().flat_map(|data| data.iter::<f64>().map(|v| v * v));
    let norm = squares.sum::<f64>().sqrt();
    let limit = norm / 3.0;

    let clipped = sgd(Some(Clipping::Norm(limit)));
    let step = on_one_stage(clipped()).step(x.clone(), y.clone()).expect("a step");
    assert!((step.gradient_norm.expect("measured") / norm - 1.0).abs() < 1e-6);
    same_on_any_cut(clipped, train);

    // The update is a third of the unclipped one, in every parameter.
    let moved = |builder: &dyn Fn() -> Builder<Tokens, Tensor<3>, Tokens>| {
        let mut pipeline = on_one_stage(builder());
        let before = pipeline.parameters().expect("parameters");
        pipeline.step(x.clone(), y.clone()).expect("a step");
        let after = pipeline.parameters().expect("parameters");
        let pairs = after.iter().flat_map(|(name, after)| {
            let (after, before) = (after.iter::<f64>(), before[name].iter::<f64>());
            after.zip(before).map(|(a, b)| a - b).collect::<Vec<_>>()
        });
        pairs.collect::<Vec<f64>>()
    };
    let (whole, third) = (moved(&sgd(None)), moved(&clipped));
    let difference = whole.iter().zip(&third).map(|(w, t)| (w / 3.0 - t).abs()).fold(0.0, f64::max);
    assert!(difference < 1e-6, "{difference}");

    // A norm below the limit changes nothing.
    let loose = sgd(Some(Clipping::Norm(100.0 * norm)));
    assert!(train(on_one_stage(loose())) == train(on_one_stage(sgd(None)())));
    let value = sgd(Some(Clipping::Value(1e-3)));
    same_on_any_cut(value, train);
    let largest = moved(&value).into_iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    assert!((largest / (0.5 * 1e-3) - 1.0).abs() < 1e-3, "{largest}");
}

#[test]
fn clipping_is_checked_and_done_in_one_place() {
    let build = |clipping: f64, own: bool| {
        let mut optimizer = AdamConfig::new();
        if own {
            optimizer = optimizer.with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
        }
        let builder = Pipeline::builder(toy()).backend(Flex::new()).loss(CrossEntropy);
        let builder = builder.optimizer(optimizer.init()).learning_rate(0.1);
        builder.clip_gradients(Clipping::Norm(clipping)).build().map(drop)
    };
    assert!(build(1.0, false).is_ok());
    for limit in [0.0, -1.0, f64::NAN] {
        let error = build(limit, false).expect_err("refused").to_string();
        assert!(error.contains("give a number above 0"), "{error}");
    }
    let error = build(1.0, true).expect_err("refused").to_string();
    assert!(error.contains(".clip_gradients("), "{error}");
}

#[test]
fn a_gradient_that_is_not_finite_updates_nothing() {
    let builder = || {
        let builder = Pipeline::builder(toy()).loss(|logits: Tensor<3>, targets: Tokens| {
            // Infinite for one of the steps only.
            let scale =
                if targets.clone().max().into_scalar::<i32>() > 10 { f64::INFINITY } else { 1.0 };
            stovepipe::LossSum::new(logits.powi_scalar(2).sum() * scale, 1.0)
        });
        adam(builder).clip_gradients(Clipping::Norm(1.0))
    };
    let mut pipeline = on_one_stage(builder());
    let before = parameter_bits(&mut pipeline);
    let device = Device::flex();
    let tokens = |class: i32| Tokens::full([3, SEQ], class, &device);
    let error = pipeline.step(tokens(1), tokens(11)).expect_err("refused").to_string();
    assert!(error.contains("nothing is updated"), "{error}");
    // Nor is it kept for later.
    pipeline.accumulate(tokens(1), tokens(11)).expect_err("refused");
    assert!(parameter_bits(&mut pipeline) == before);
    pipeline.step(tokens(1), tokens(1)).expect("a step");
}

#[test]
fn ignored_tokens_are_averaged_over_the_whole_mini_batch() {
    // Targets of class 3 don't count; micro-batches have different numbers of others.
    let builder = || adam(Pipeline::builder(toy()).loss(CrossEntropy.ignoring(3)));
    same_on_any_cut(builder, train);
    let (x, y) = batch(7, 0);
    let counted = y.to_data().iter::<i64>().filter(|&class| class != 3).count();
    let step = on_one_stage(builder()).step(x.clone(), y.clone()).expect("a step");
    assert_eq!(step.weight, counted as f64);
    // As if each token were weighed by hand.
    let weights = y.clone().equal_scalar(3).bool_not().float();
    let by_hand = || adam(Pipeline::builder(toy()).loss(CrossEntropy.weighted()));
    let weighed = on_one_stage(by_hand()).step(x, (y, weights)).expect("a step");
    assert_eq!((weighed.loss, weighed.weight), (step.loss, step.weight));
}

#[test]
fn weighted_samples_and_tokens_are_averaged_over_the_whole_mini_batch() {
    let device = Device::flex();
    let by_token = || adam(Pipeline::builder(toy()).loss(CrossEntropy.weighted()));
    same_on_any_cut(by_token, |mut pipeline| {
        let (x, y) = batch(7, 0);
        let weights = x.clone().float() * 0.25;
        let step = pipeline.step(x, (y, weights.clone())).expect("a step");
        assert_eq!(step.weight, weights.into_data().iter::<f64>().sum::<f64>());
        (step.loss, parameter_bits(&mut pipeline))
    });
    let by_sample = || adam(Pipeline::builder(toy()).loss(MeanSquaredError.weighted()));
    same_on_any_cut(by_sample, |mut pipeline| {
        let (x, _) = batch(7, 0);
        let weights = Tensor::<1>::from_data([1.0, 0.0, 2.0, 0.5, 1.0, 4.0, 1.5], &device);
        let targets = Tensor::<3>::ones([7, SEQ, CLASSES], &device);
        let step = pipeline.step(x, (targets, weights)).expect("a step");
        assert_eq!(step.weight, 10.0 * (SEQ * CLASSES) as f64);
        (step.loss, parameter_bits(&mut pipeline))
    });
}

#[test]
fn a_batch_in_which_nothing_counts_is_refused() {
    let builder = || adam(Pipeline::builder(toy()).loss(CrossEntropy.ignoring(3)));
    let mut pipeline = on_one_stage(builder());
    let before = parameter_bits(&mut pipeline);
    let targets = Tokens::full([4, SEQ], 3, &Device::flex());
    let error = pipeline.step(batch(4, 0).0, targets).expect_err("refused").to_string();
    assert!(error.contains("add up to 0"), "{error}");
    assert!(parameter_bits(&mut pipeline) == before);
}

#[test]
fn accumulated_mini_batches_count_every_sample_once() {
    let accumulate = |mut pipeline: Pipeline<Tokens, Tensor<3>, Tokens>| {
        for step in 0..2 {
            for (samples, number) in [(7, 0), (2, 1)] {
                let (x, y) = batch(samples, 3 * step + number);
                pipeline.accumulate(x, y).expect("gradients");
            }
            let (x, y) = batch(4, 3 * step + 2);
            pipeline.step(x, y).expect("a step");
        }
        parameter_bits(&mut pipeline)
    };
    let plain = || classifier(toy());
    same_on_any_cut(plain, accumulate);
    same_on_any_cut(|| plain().clip_gradients(Clipping::Norm(0.1)), accumulate);
    same_on_any_cut(|| plain().atomic_updates(true), accumulate);

    // The mean over all thirteen samples.
    let sgd = || {
        let builder = Pipeline::builder(toy()).loss(CrossEntropy);
        builder.optimizer(SgdConfig::new().init()).learning_rate(1.0)
    };
    let (a, b, c) = (batch(7, 0), batch(2, 1), batch(4, 2));
    let mut apart = on_one_stage(sgd());
    apart.accumulate(a.0.clone(), a.1.clone()).expect("gradients");
    apart.accumulate(b.0.clone(), b.1.clone()).expect("gradients");
    // Looking at gradients neither adds nor takes.
    apart.gradients(a.0.clone(), a.1.clone()).expect("gradients");
    apart.step(c.0.clone(), c.1.clone()).expect("a step");
    let mut together = on_one_stage(sgd());
    let all = |pick: fn(&(Tokens, Tokens)) -> &Tokens| {
        Tensor::cat([&a, &b, &c].map(|pair| pick(pair).clone()).to_vec(), 0)
    };
    together.step(all(|pair| &pair.0), all(|pair| &pair.1)).expect("a step");
    let (apart, together) =
        (apart.parameters().expect("parameters"), together.parameters().expect("parameters"));
    assert!(relative_difference(&apart, &together) < 1e-6);
}

#[test]
fn a_failed_step_keeps_what_was_accumulated() {
    let builder = || adam(Pipeline::builder(toy()).loss(CrossEntropy.ignoring(3)));
    let run = |fails: bool| {
        let mut pipeline = on_one_stage(builder());
        let (x, y) = batch(5, 0);
        pipeline.accumulate(x.clone(), y.clone()).expect("gradients");
        if fails {
            // Token numbers that the embedding doesn't have.
            let wrong = Tokens::full([5, SEQ], CLASSES as i32 + 5, &Device::flex());
            pipeline.step(wrong.clone(), y.clone()).expect_err("fails");
            pipeline.accumulate(wrong, y).expect_err("fails");
        }
        let (x, y) = batch(4, 1);
        pipeline.step(x, y).expect("a step");
        parameter_bits(&mut pipeline)
    };
    assert!(run(true) == run(false));
}

#[test]
fn frozen_layers_stay_and_let_gradients_through() {
    // The first stage has nothing to train, a middle one is frozen.
    let model = || {
        Sequential::<Tokens>::new()
            .push_module(
                "embed",
                |d| EmbeddingConfig::new(CLASSES, DIM).init(d).no_grad(),
                |m, x| m.forward(x),
            )
            .linear("up", DIM, DIM)
            .push_module(
                "frozen",
                |d| LinearConfig::new(DIM, DIM).init(d).no_grad(),
                |m, x: Tensor<3>| m.forward(x),
            )
            .head()
    };
    let builder = || {
        let builder = classifier(model());
        builder.clip_gradients(Clipping::Norm(0.05))
    };
    same_on_any_cut(builder, train);
    let mut pipeline = on_one_stage(builder());
    let before = parameter_bits(&mut pipeline);
    let (x, y) = batch(7, 0);
    let gradients = pipeline.gradients(x.clone(), y.clone()).expect("gradients").gradients;
    let names: Vec<&str> = gradients.keys().map(String::as_str).collect();
    assert_eq!(names, ["head.bias", "head.weight", "up.bias", "up.weight"]);
    pipeline.step(x, y).expect("a step");
    let after = parameter_bits(&mut pipeline);
    let moved: Vec<&String> = after.keys().filter(|name| after[*name] != before[*name]).collect();
    assert_eq!(moved, ["head.bias", "head.weight", "up.bias", "up.weight"]);
}

#[test]
fn parameter_groups_and_rates_go_by_paths_in_the_whole_model() {
    // Another optimizer for the head; weight decay for one layer; a rate that falls, and one of
    // zero for the embedding.
    let builder = || {
        let decaying = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.5)));
        let optimizer = SgdConfig::new()
            .init()
            .with_group(ParamGroup::from_predicate("head"), AdamConfig::new().build(), None)
            .with_group(ParamGroup::from_predicate("join"), decaying.build(), None);
        let rates = ExponentialLrSchedulerConfig::new(0.5, 0.5).init().expect("rates");
        let rates = rates.with_group(ParamGroup::from_predicate("embed"), 0.0);
        Pipeline::builder(toy()).optimizer(optimizer).learning_rates(rates).loss(CrossEntropy)
    };
    same_on_any_cut(builder, |mut pipeline| {
        let before = parameter_bits(&mut pipeline);
        let rates = (0..3).map(|step| {
            let (x, y) = batch(7, step);
            pipeline.step(x, y).expect("a step").learning_rate
        });
        let rates: Vec<f64> = rates.collect();
        assert!(rates.is_sorted_by(|a, b| a > b), "{rates:?}");
        let after = parameter_bits(&mut pipeline);
        assert!(after["embed.embedding.weight"] == before["embed.embedding.weight"]);
        assert!(after["head.weight"] != before["head.weight"]);
        after
    });
    // The decayed layer is another one without decay, the others aren't after one step.
    let step = |decay: bool| {
        let optimizer = SgdConfig::new().init();
        let decaying = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.5)));
        let group = ParamGroup::from_predicate("join");
        let optimizer =
            if decay { optimizer.with_group(group, decaying.build(), None) } else { optimizer };
        let builder = || {
            let builder = Pipeline::builder(toy()).optimizer(optimizer.clone());
            builder.learning_rate(0.1).loss(CrossEntropy)
        };
        let mut pipeline = on_one_stage(builder());
        let (x, y) = batch(7, 0);
        pipeline.step(x, y).expect("a step");
        parameter_bits(&mut pipeline)
    };
    let (with, without) = (step(true), step(false));
    let other: Vec<&String> = with.keys().filter(|name| with[*name] != without[*name]).collect();
    assert_eq!(other, ["join.out.bias", "join.out.weight"]);
}
