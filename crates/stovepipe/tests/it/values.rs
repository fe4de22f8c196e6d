//! Values that cross stages besides the chain of activations, and values that come back besides the
//! loss, each against one stage, bit for bit.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::{Bool, Device, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::schedule::{OneFOneB, Plan, PlanError, Shape};
use stovepipe_testkit::{
    CLASSES, DIM, LinearLayers, SEQ, Tokens, adam, batch, classifier, embed, on_one_stage,
    parameter_bits, relative_difference, same_on_any_cut, toy, train,
};

/// A layer whose use is penalized, as that of experts is.
fn with_added_losses() -> Sequential<Tokens, Tensor<3>> {
    embed()
        .push("first", |d| Penalized { linear: LinearConfig::new(DIM, DIM).init(d) })
        .push("second", |d| Penalized { linear: LinearConfig::new(DIM, DIM).init(d) })
        .head()
}

#[derive(Module, Debug)]
struct Penalized {
    linear: Linear,
}

impl Layer for Penalized {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let y = self.linear.forward(x);
        context.add_loss(y.clone().powi_scalar(2).sum() * 0.01);
        y
    }
}

#[test]
fn layers_add_to_the_loss_from_any_stage() {
    let builder = || classifier(with_added_losses());
    same_on_any_cut(builder, |mut pipeline| {
        let steps = (0..3).map(|step| {
            let (x, y) = batch(7, step);
            let step = pipeline.step(x, y).expect("a step");
            assert!(step.added_loss > 0.0);
            (step.loss, step.added_loss)
        });
        let steps: Vec<_> = steps.collect();
        let (x, y) = batch(7, 0);
        let evaluation = pipeline.evaluate(x, y).expect("evaluates");
        (steps, evaluation.added_loss, parameter_bits(&mut pipeline))
    });

    // The same objective written as one loss: the model hands out both outputs.
    let (x, y) = batch(7, 0);
    let found = on_one_stage(builder()).gradients(x.clone(), y.clone()).expect("gradients");
    let by_hand = embed()
        .push_module("first", linear_named, |m, x: Tensor<3>| m.linear.forward(x))
        .push_module("second", linear_named, |m, x: Tensor<3>| (m.linear.forward(x.clone()), x))
        .push_module(
            "head",
            |d| LinearConfig::new(DIM, CLASSES).init(d),
            |m, (second, first): (Tensor<3>, Tensor<3>)| {
                (m.forward(second.clone()), (second, first))
            },
        );
    type Outputs = (Tensor<3>, (Tensor<3>, Tensor<3>));
    let mut by_hand = Pipeline::builder(by_hand)
        .backend(Flex::new())
        .micro_batches(3)
        .seed(11)
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-2)
        .loss(|(logits, (second, first)): Outputs, targets: Tokens| {
            let penalty = |x: Tensor<3>| x.powi_scalar(2).sum() * 0.01;
            let loss = stovepipe::Loss::forward(&CrossEntropy, logits, targets);
            stovepipe::LossSum::new(loss.sum + penalty(first) + penalty(second), loss.weight)
        })
        .build()
        .expect("a pipeline");
    let expected = by_hand.gradients(x, y).expect("gradients");
    assert!(relative_difference(&found.gradients, &expected.gradients) < 1e-5);
}

fn linear_named(device: &Device) -> Penalized {
    Penalized { linear: LinearConfig::new(DIM, DIM).init(device) }
}

#[test]
fn metrics_are_means_over_the_mini_batch() {
    let builder = || {
        let builder = classifier(toy());
        builder.metric("accuracy", Accuracy).metric("loss", CrossEntropy)
    };
    same_on_any_cut(builder, |mut pipeline| {
        let (x, y) = batch(7, 0);
        let evaluation = pipeline.evaluate(x.clone(), y.clone()).expect("evaluates");
        let step = pipeline.step(x, y).expect("a step");
        assert_eq!(step.metrics["loss"], step.loss);
        (evaluation.metrics, step.metrics)
    });
    let (x, y) = batch(7, 0);
    let mut pipeline = on_one_stage(builder());
    let found = pipeline.step(x.clone(), y.clone()).expect("a step").metrics["accuracy"];
    let classes = on_one_stage(builder()).predict(x).expect("predicts").argmax(2).to_data();
    let right =
        classes.iter::<i64>().zip(y.to_data().iter::<i64>()).filter(|(a, b)| a == b).count();
    assert_eq!(found, right as f64 / (7 * SEQ) as f64);
}

#[test]
fn side_inputs_reach_any_stage() {
    let model = || {
        embed()
            .push_fn_with_context("mask", |x: Tensor<3>, context| {
                let mask: Tensor<2, Bool> = context.side_input("mask");
                x.mask_fill(mask.unsqueeze_dim::<3>(2).repeat_dim(2, DIM), 0.0)
            })
            .head()
            .push_fn_with_context("scale", |x: Tensor<3>, context| {
                let (scale, _): (Tensor<1>, Option<Tensor<1>>) = context.side_input("scale");
                let [samples] = scale.dims();
                x * scale.reshape([samples, 1, 1])
            })
    };
    let builder = || classifier(model());
    let device = Device::flex();
    let mask = |samples: usize| batch(samples, 9).0.equal_scalar(2);
    let scale = |samples: usize| {
        let scale = Tensor::<1, Int>::arange(0..samples as i64, &device).float() * 0.1 + 1.0;
        (scale, None::<Tensor<1>>)
    };
    same_on_any_cut(builder, |mut pipeline| {
        for step in 0..2 {
            let (x, y) = batch(7, step);
            pipeline.side_input("mask", mask(7)).side_input("scale", scale(7));
            pipeline.step(x, y).expect("a step");
        }
        let (x, y) = batch(4, 0);
        pipeline.side_input("mask", mask(4)).side_input("scale", scale(4));
        let loss = pipeline.evaluate(x, y).expect("evaluates").loss;
        (loss, parameter_bits(&mut pipeline))
    });

    // And layers that are measured.
    let (x, y) = batch(4, 0);
    let profiling = stovepipe::Profiling::new([2, 4]).runs(1).warm_up(0);
    let profiling = profiling.side_input("mask", mask(4)).side_input("scale", scale(4));
    let profile = builder().backend(Flex::new()).profile(&profiling, x, y).expect("a profile");
    assert_eq!(profile.layers().len(), 4);

    let mut pipeline = on_one_stage(builder());
    let (x, y) = batch(4, 0);
    pipeline.side_input("scale", scale(4));
    let error = pipeline.step(x.clone(), y.clone()).expect_err("no mask").to_string();
    assert!(error.contains("the side input `mask`, the step was given [\"scale\"]"), "{error}");
    pipeline.side_input("mask", scale(4)).side_input("scale", scale(4));
    let error = pipeline.step(x.clone(), y.clone()).expect_err("no mask").to_string();
    assert!(error.contains("takes Tensor<2, Bool>, but was given"), "{error}");
    pipeline.side_input("mask", mask(3));
    let error = pipeline.step(x, y).expect_err("too few").to_string();
    let expected = "the side input `mask` has 3 samples, the input 4: give one for each sample, or \
                    give what is the same for all samples with `.side_constant(\"mask\", …)`";
    assert_eq!(error, expected);
}

#[test]
fn optional_values_cross_stages() {
    // Every other step has no second part.
    let model = || {
        embed()
            .push_fn_with_context("some", |x: Tensor<3>, context| {
                let bias = x.clone().mean_dim(1) * 2.0;
                (x, (context.step() % 2 == 0).then_some(bias))
            })
            .push_fn("pass", |value: (Tensor<3>, Option<Tensor<3>>)| value)
            .push_module(
                "add",
                |d| LinearConfig::new(DIM, CLASSES).init(d),
                |m, (x, bias): (Tensor<3>, Option<Tensor<3>>)| {
                    m.forward(match bias {
                        Some(bias) => x + bias,
                        None => x,
                    })
                },
            )
    };
    let builder = || classifier(model());
    same_on_any_cut(builder, train);
}

#[test]
fn truth_values_and_whole_numbers_cross_stages() {
    let model = || {
        embed()
            .push_fn("where", |x: Tensor<3>| {
                let (largest, positive) = (x.clone().argmax(2), x.clone().greater_scalar(0.0));
                (x, largest, positive)
            })
            .push_fn("pass", |value: (Tensor<3>, Tensor<3, Int>, Tensor<3, Bool>)| value)
            .push_module(
                "head",
                |d| LinearConfig::new(DIM, CLASSES).init(d),
                |m, (x, largest, positive): (Tensor<3>, Tensor<3, Int>, Tensor<3, Bool>)| {
                    m.forward(x.mask_fill(positive, 0.5) + largest.float() * 0.1)
                },
            )
    };
    let builder = || classifier(model());
    same_on_any_cut(builder, train);
}

#[test]
fn shapes_may_differ_from_micro_batch_to_micro_batch() {
    // Each micro-batch goes on with another number of positions.
    let model = || {
        embed()
            .push_fn_with_context("shorter", |x: Tensor<3>, context| {
                x.narrow(1, 0, SEQ - context.micro_batch())
            })
            .push_fn("pass", |x: Tensor<3>| x)
            .head()
    };
    // Outputs meet the targets of their own micro-batch.
    let loss = |logits: Tensor<3>, targets: Tokens| {
        let [_, length, _] = logits.dims();
        CrossEntropy.forward(logits, targets.narrow(1, 0, length))
    };
    let builder = || adam(Pipeline::builder(model()).loss(loss));
    let (losses, _) = same_on_any_cut(builder, train);
    let (x, y) = batch(7, 0);
    let mut pipeline = on_one_stage(builder());
    let step = pipeline.step(x, y).expect("a step");
    assert_eq!(
        (step.loss, step.weight),
        (losses[0], (3 * SEQ + 2 * (SEQ - 1) + 2 * (SEQ - 2)) as f64)
    );
    // There is no one tensor to put such outputs into.
    let error = pipeline.predict(batch(7, 0).0).expect_err("of different lengths").to_string();
    assert!(error.contains("can't be joined"), "{error}");
}

#[test]
fn looking_and_training_in_any_order() {
    let builder = || classifier(toy());
    let (seen, parameters) = same_on_any_cut(builder, |mut pipeline| {
        let mut seen = Vec::new();
        for step in 0..3 {
            let (x, y) = batch(7, step);
            seen.push(pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss);
            let output = pipeline.predict(x.narrow(0, 0, 2 + step)).expect("predicts").into_data();
            seen.extend(output.iter::<f64>());
            let (x, y) = batch(7, step);
            seen.push(pipeline.step(x, y).expect("a step").loss);
        }
        (seen, parameter_bits(&mut pipeline))
    });
    assert!(seen.iter().all(|value| value.is_finite()));
    // Looking changes nothing.
    assert!(train(on_one_stage(builder())).1 == parameters);
}

#[test]
fn lengths_may_change_from_step_to_step() {
    let builder = || classifier(toy());
    same_on_any_cut(builder, |mut pipeline| {
        for (samples, length) in [(7, SEQ), (3, 2), (8, 1), (7, SEQ)] {
            let (x, y) = batch(samples, length);
            pipeline.step(x.narrow(1, 0, length), y.narrow(1, 0, length)).expect("a step");
        }
        parameter_bits(&mut pipeline)
    });
}

#[test]
fn looking_needs_only_the_placement_of_a_plan() {
    // Plans that are made for four micro-batches, and one that only whole rounds of ranks suit.
    let shape = Shape::new(2, 4);
    let fixed = || -> [(Box<dyn Schedule>, usize); 2] {
        let plan = OneFOneB.plan(shape).expect("a plan");
        [(Box::new(plan), 2), (Box::new(OnlyWholeRounds), 2)]
    };
    for number in 0..fixed().len() {
        let build = || {
            let (schedule, stages) = fixed().into_iter().nth(number).expect("it is there");
            let builder = classifier(toy()).backend(Flex::new()).schedule(schedule);
            builder.stages(stages).micro_batches(4).build().expect("a pipeline")
        };
        let mut pipeline = build();
        for samples in [4, 1, 3, 9] {
            let (x, y) = batch(samples, 0);
            assert_eq!(pipeline.predict(x.clone()).expect("predicts").dims()[0], samples);
            let found = pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss;
            let mut usual = classifier(toy()).backend(Flex::new()).stages(2).micro_batches(4);
            usual = usual.schedule(OneFOneB);
            let expected = usual.build().expect("a pipeline").evaluate(x, y).expect("evaluates");
            assert_eq!(found, expected.loss);
        }
        // Training does need the plan.
        let (x, y) = batch(1, 0);
        assert!(pipeline.step(x, y).is_err());
        let (x, y) = batch(4, 0);
        pipeline.step(x, y).expect("a step");
    }
}

/// As 1F1B, but refuses numbers of micro-batches that aren't multiples of the ranks.
struct OnlyWholeRounds;

impl Schedule for OnlyWholeRounds {
    fn name(&self) -> &str {
        "only-whole-rounds"
    }

    fn plan(&self, shape: Shape) -> Result<Plan, PlanError> {
        if shape.micro_batches.is_multiple_of(shape.ranks) {
            return OneFOneB.plan(shape);
        }
        Err(PlanError::EmptyShape { what: "whole rounds" })
    }
}
