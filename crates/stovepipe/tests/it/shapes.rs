//! Values of other shapes than they are given as are refused, by name, instead of being broadcast
//! or cut along the wrong axis. Where they mean something, it is the same for every number of
//! micro-batches.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Initializer, Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Device, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::Always;
use stovepipe::{
    BatchNorm, Builder, Loss, LossSum, MemoryCounter, Pass, Profiling, Rehearsal, SampleAxis,
    TrainError,
};
use stovepipe_testkit::{LinearLayers, Tokens, floats};

type Floats = Tensor<2>;

/// Begins a pipeline that trains a model with squared errors, on so many micro-batches.
fn trained<const D: usize>(
    model: Sequential<Tensor<D>>,
    micro_batches: usize,
) -> Builder<Tensor<D>, Tensor<D>, Tensor<D>> {
    Pipeline::builder(model)
        .backend(Flex::new())
        .micro_batches(micro_batches)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(MeanSquaredError)
}

#[test]
fn errors_of_a_failing_layer_name_the_layer() {
    let model = |pass: Option<Pass>| {
        let model = Sequential::<Floats>::new().linear("before", 3, 3);
        let model = model.push_fn_with_context("fragile", move |x: Floats, context| {
            assert_ne!(Some(context.pass()), pass, "it fell over");
            x
        });
        model.linear("after", 3, 3)
    };
    let is_named = |error: &str| {
        error.contains("layer `fragile` panicked: ") && error.contains("it fell over")
    };
    let (x, y) = (floats([4, 3]), floats([4, 3]));
    for pass in [Pass::Train, Pass::Recompute, Pass::Evaluate] {
        let builder = trained(model(Some(pass)), 2).checkpoint(Always);
        let mut pipeline = builder.build().expect("a pipeline");
        let step = pipeline.step(x.clone(), y.clone()).map(drop);
        let error = step.and_then(|()| pipeline.predict(x.clone()).map(drop)).expect_err("fails");
        assert_eq!(error.layer(), Some("fragile"), "{pass:?}: {error}");
        assert!(is_named(&error.to_string()), "{error}");
    }
    // Layers that are measured together, too.
    let profiling = Profiling::new([2]).runs(1).warm_up(0);
    let profile = trained(model(Some(Pass::Train)), 2).profile(&profiling, x.clone(), y.clone());
    let error = profile.expect_err("fails").to_string();
    assert!(is_named(&error), "{error}");

    // A metric isn't a layer, but has a name as well.
    let metric = |_: Floats, _: Floats| -> LossSum { panic!("it fell over") };
    let mut pipeline = trained(model(None), 2).metric("odd", metric).build().expect("a pipeline");
    let error = pipeline.step(x, y).expect_err("fails");
    assert_eq!(error.layer(), None);
    let error = error.to_string();
    assert!(error.contains("forward: the metric `odd` panicked: it fell over"), "{error}");
}

/// Multiplies by one, and adds a penalty of nothing for each sample or for all.
#[derive(Module, Debug)]
struct Penalized {
    linear: Linear,
    #[module(skip)]
    by_sample: bool,
}

impl Layer for Penalized {
    type Input = Floats;
    type Output = Floats;

    fn forward(&self, x: Floats, context: &mut LayerContext<'_>) -> Floats {
        let y = self.linear.forward(x);
        let penalties = y.clone().reshape([-1]) * 0.0;
        context.add_loss(if self.by_sample { penalties } else { penalties.sum() });
        y
    }
}

#[test]
fn what_layers_add_to_the_loss_is_one_number() {
    let gradient = |by_sample: bool, micro_batches: usize| {
        let model = Sequential::<Floats>::new().push("penalized", move |device| {
            let linear = LinearConfig::new(1, 1).with_bias(false);
            let linear = linear.with_initializer(Initializer::Ones).init(device);
            Penalized { linear, by_sample }
        });
        let mut pipeline = trained(model, micro_batches).build().expect("a pipeline");
        let x = Floats::ones([4, 1], &Device::flex());
        let found = pipeline.gradients(x.clone(), x.zeros_like())?;
        Ok(found.gradients["penalized.linear.weight"].iter::<f64>().collect::<Vec<_>>())
    };
    for micro_batches in [1, 2, 4] {
        assert_eq!(gradient(false, micro_batches).expect("gradients"), [2.0]);
    }
    for (micro_batches, shape) in [(1, "[4]"), (2, "[2]")] {
        let error: TrainError = gradient(true, micro_batches).expect_err("refused");
        assert_eq!(error.layer(), Some("penalized"));
        let error = error.to_string();
        let expected = format!("layer `penalized` adds a tensor of shape {shape} to the loss");
        assert!(error.contains(&expected) && error.contains("to shape [1]"), "{error}");
    }
}

#[test]
fn losses_and_metrics_are_a_number_and_a_weight() {
    type Make = fn(Floats) -> LossSum;
    let refusals: [(Make, &str); 3] = [
        (|x| LossSum::new(x.reshape([-1]), 6.0), "sum of the metric `odd` has the shape [6]"),
        (
            |x| LossSum::new(x.clone().sum(), x.sum_dim(1).squeeze_dim::<1>(1)),
            "weight of the metric `odd` has the shape [2]",
        ),
        (|x| LossSum::new(x.clone().sum(), x.ones_like().sum()), ""),
    ];
    for (make, expected) in refusals {
        for is_loss in [false, true] {
            let loss = move |output: Floats, _: Floats| make(output);
            let model = Sequential::<Floats>::new().linear("linear", 3, 3);
            let builder = trained(model, 2);
            let builder = if is_loss { builder.loss(loss) } else { builder.metric("odd", loss) };
            let mut pipeline = builder.build().expect("a pipeline");
            let (x, y) = (floats([4, 3]) + 1.0, floats([4, 3]));
            let results =
                [pipeline.evaluate(x.clone(), y.clone()).map(drop), pipeline.step(x, y).map(drop)];
            let expected = if is_loss {
                expected.replace("metric `odd`", "loss")
            } else {
                expected.to_owned()
            };
            for result in results {
                match result {
                    Ok(()) => assert_eq!(expected, ""),
                    Err(error) => {
                        let error = error.to_string();
                        assert!(!expected.is_empty() && error.contains(&expected), "{error}");
                    }
                }
            }
        }
    }
}

#[test]
fn outputs_and_targets_are_not_broadcast_to_each_other() {
    let refused = |result: Result<LossSum, Box<dyn std::any::Any + Send>>| {
        let panic = result.expect_err("refused");
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains("or it is broadcast"), "{text}");
    };
    let device = Device::flex();
    let ids = |shape: [usize; 2]| Tokens::zeros(shape, &device);
    refused(catch_unwind(|| MeanSquaredError.forward(floats([4, 3]), floats([4, 1]))));
    let pair = || (floats([4, 3]), Tensor::<1>::ones([1], &Device::flex()));
    refused(catch_unwind(|| MeanSquaredError.weighted().forward(floats([4, 3]), pair())));
    // One weight for the whole sequence, which a micro-batch of one sample would spread.
    let pair = || (ids([1, 5]), floats([1, 1]));
    refused(catch_unwind(|| CrossEntropy.weighted().forward(floats([1, 5, 7]), pair())));
    refused(catch_unwind(|| Accuracy.forward(floats([1, 5, 7]), ids([1, 1]))));

    let model = Sequential::<Floats>::new().linear("linear", 3, 3);
    let mut pipeline = trained(model, 2).build().expect("a pipeline");
    let error = pipeline.step(floats([4, 3]), floats([4, 1])).expect_err("refused").to_string();
    assert!(error.contains("forward: the loss panicked: "), "{error}");
    assert!(error.contains("the output must have the shape of the targets"), "{error}");
}

#[test]
fn outputs_have_the_batch_axis_that_they_claim() {
    let model = || {
        let model = Sequential::<Floats>::new().linear("linear", 3, 3);
        model.push_fn("mean", |x: Floats| x.mean_dim(0))
    };
    let x = || floats([8, 3]);
    let named = |error: TrainError, micro_batches: usize| {
        assert_eq!(error.layer(), Some("mean"));
        let error = error.to_string();
        let expected = format!("a micro-batch of {} samples", 8 / micro_batches);
        assert!(error.contains("`mean` returns Tensor<2> [1, 3]"), "{error}");
        assert!(error.contains(&expected), "{error}");
    };
    for micro_batches in [1, 2, 4] {
        let mut pipeline = trained(model(), micro_batches).stages(2).build().expect("a pipeline");
        named(pipeline.predict(x()).expect_err("refused"), micro_batches);
        named(pipeline.evaluate(x(), x()).expect_err("refused"), micro_batches);
        named(pipeline.step(x(), x()).expect_err("refused"), micro_batches);
        // Where the last layer is rebuilt, too.
        let builder = trained(model(), micro_batches).checkpoint(Always);
        let mut pipeline = builder.build().expect("a pipeline");
        named(pipeline.gradients(x(), x()).expect_err("refused"), micro_batches);
    }
    let rehearsal = Rehearsal::new(0, NoMemory);
    named(trained(model(), 2).stages(2).rehearse(&rehearsal, x(), x()).expect_err("refused"), 2);
    let profiling = Profiling::new([4]).runs(1).warm_up(0);
    let profile = trained(model(), 2).profile(&profiling, x(), x()).expect_err("refused");
    assert!(profile.to_string().contains("`mean` returns Tensor<2> [1, 3]"), "{profile}");

    // Every part of an output, except what isn't there.
    let mut parts = Pipeline::builder(Sequential::<Floats>::new().push_fn("parts", |x: Floats| {
        let absent = None::<Floats>;
        (x.clone(), absent, x.swap_dims(0, 1).equal_elem(0.0))
    }))
    .backend(Flex::new())
    .micro_batches(2)
    .build()
    .expect("a pipeline");
    let error = parts.predict(x()).expect_err("refused").to_string();
    assert!(error.contains("`parts` returns Tensor<2, Bool> [3, 4]"), "{error}");
    assert!(parts.predict(floats([6, 3])).is_ok());
}

/// Counts nothing.
struct NoMemory;

impl MemoryCounter for NoMemory {
    fn live_bytes(&self) -> u64 {
        0
    }
}

#[test]
fn targets_have_the_batch_axis_in_every_part() {
    let model = Sequential::<Floats>::new().linear("linear", 3, 3);
    let builder = trained(model, 2).loss(MeanSquaredError.weighted());
    let mut pipeline = builder.build().expect("a pipeline");
    let mut target = |samples: usize, weights: usize| {
        let target = (floats([samples, 3]), Tensor::<1>::ones([weights], &Device::flex()));
        pipeline.step(floats([4, 3]), target)
    };
    target(4, 4).expect("a step");
    let error = target(3, 3).expect_err("refused").to_string();
    assert_eq!(error, "the input has 4 samples, the target 3: give as many of both");
    let error = target(4, 1).expect_err("refused").to_string();
    assert!(error.contains("the target can't be split") && error.contains("[1]"), "{error}");
    // Not even if there is a single micro-batch.
    let model = Sequential::<Floats>::new().linear("linear", 3, 3);
    let mut whole = trained(model, 1).build().expect("a pipeline");
    whole.step(floats([4, 3]), floats([1, 3])).expect_err("refused");
}

/// Draws in one of the ways that a layer may, of which the number is given.
fn drawn(x: Tensor<3>, context: &mut LayerContext<'_>, way: usize, axis: SampleAxis) -> Tensor<3> {
    match way {
        0 => context.dropout_along(x, 0.5, axis),
        1 => x.clone() + context.uniform_along(&x, axis),
        _ => x.clone() + context.normal_along(&x, axis),
    }
}

/// Computes gradients of four samples of shape `[3, 8]`. Returns what a layer that draws hands on,
/// in the order of the samples, and the loss.
fn step_with(
    micro_batches: usize,
    draw: impl Fn(Tensor<3>, &mut LayerContext<'_>) -> Tensor<3> + Send + Sync + 'static,
) -> Result<(Vec<u8>, f64), TrainError> {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let notes = Arc::clone(&seen);
    let model = Sequential::<Tensor<3>>::new()
        .push_fn_with_context("draw", draw)
        .push_fn_with_context("look", move |x: Tensor<3>, context| {
            let bytes = x.clone().inner().into_data().as_bytes().to_vec();
            notes.lock().expect("no panic").insert(context.micro_batch(), bytes);
            x
        })
        .linear("linear", 8, 8);
    let mut pipeline = trained(model, micro_batches).build().expect("a pipeline");
    let x = Tensor::<3>::ones([4, 3, 8], &Device::flex());
    let loss = pipeline.gradients(x.clone(), x.zeros_like())?.loss;
    let seen = seen.lock().expect("no panic");
    Ok((seen.values().flatten().copied().collect(), loss))
}

#[test]
fn random_numbers_are_those_of_the_samples_wherever_their_axis_is() {
    let (batch, flat) = (SampleAxis::Batch, SampleAxis::Flattened);
    for way in 0..3 {
        let (expected, loss) =
            step_with(1, move |x, context| drawn(x, context, way, batch(0))).expect("a step");
        for micro_batches in 1..=4 {
            let same = |(found, found_loss): (Vec<u8>, f64)| {
                assert!(found == expected, "{way} {micro_batches}");
                assert!((found_loss - loss).abs() < 1e-5 * loss, "{found_loss} {loss}");
            };
            let plain = step_with(micro_batches, move |x, context| match way {
                0 => context.dropout(x, 0.5),
                1 => x.clone() + context.uniform(&x),
                _ => x.clone() + context.normal(&x),
            });
            same(plain.expect("a step"));
            let inside = step_with(micro_batches, move |x, context| {
                drawn(x.swap_dims(0, 1), context, way, batch(1)).swap_dims(0, 1)
            });
            same(inside.expect("a step"));
            let flattened = step_with(micro_batches, move |x, context| {
                let shape = x.dims();
                let x = x.reshape([1, shape[0] * 3, 8]).swap_dims(0, 1);
                drawn(x, context, way, flat(0)).reshape(shape)
            });
            same(flattened.expect("a step"));
            // Samples in the middle, and last.
            let last = step_with(micro_batches, move |x, context| {
                let x = drawn(x.permute([1, 2, 0]), context, way, batch(2));
                x.permute([2, 0, 1])
            });
            same(last.expect("a step"));
        }
    }
}

#[test]
fn random_numbers_are_refused_where_no_axis_holds_the_samples() {
    for micro_batches in [1, 2, 4] {
        for way in 0..3 {
            let refused = |axis: SampleAxis, shown: &str| {
                let step = step_with(micro_batches, move |x, context| {
                    drawn(x.swap_dims(0, 1), context, way, axis).swap_dims(0, 1)
                });
                let error = step.expect_err("refused");
                assert_eq!(error.layer(), Some("draw"));
                let samples = 4 / micro_batches;
                let expected = format!(
                    "draws random numbers of shape [3, {samples}, 8], but {shown} doesn't hold the \
                     {samples} samples of the micro-batch"
                );
                assert!(error.to_string().contains(&expected), "{error}");
            };
            refused(SampleAxis::Batch(0), "axis 0");
            refused(SampleAxis::Batch(3), "axis 3");
            if micro_batches < 4 {
                refused(SampleAxis::Flattened(0), "the flattened axis 0");
            }
        }
    }
    // In evaluation as well, where nothing is drawn.
    let model = Sequential::<Tensor<3>>::new().push_fn_with_context("draw", |x: Tensor<3>, c| {
        c.dropout(x.swap_dims(0, 1), 0.5).swap_dims(0, 1)
    });
    let mut pipeline = trained(model.linear("linear", 8, 8), 2).build().expect("a pipeline");
    let error = pipeline.predict(floats([4, 3, 8])).expect_err("refused");
    assert_eq!(error.layer(), Some("draw"));
}

/// A batch normalization alone.
#[derive(Module, Debug)]
struct Normalized {
    norm: BatchNorm,
}

impl Layer for Normalized {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        self.norm.forward(x, context)
    }
}

#[test]
fn batch_norm_needs_more_than_one_value_of_each_feature() {
    let model = |frozen: bool| {
        Sequential::<Tensor<3>>::new().linear("linear", 1, 1).push("norm", move |device| {
            let mut norm = BatchNorm::new(3, device);
            norm.frozen = frozen;
            Normalized { norm }
        })
    };
    let build = |frozen: bool, micro_batches: usize| {
        trained(model(frozen), micro_batches).stages(2).build().expect("a pipeline")
    };
    let x = || floats([8, 3, 1]);
    let mut single = build(false, 8);
    for error in [
        single.step(x(), x()).expect_err("refused"),
        single.accumulate(x(), x()).expect_err("refused"),
        single.gradients(x(), x()).expect_err("refused"),
        // Of nine micro-batches the last seven hold one sample.
        build(false, 9).step(floats([11, 3, 1]), floats([11, 3, 1])).expect_err("refused"),
    ] {
        assert_eq!(error.layer(), Some("norm"));
        let error = error.to_string();
        assert!(
            error.contains("layer `norm` normalizes a micro-batch of shape [1, 3, 1]"),
            "{error}"
        );
    }
    // The refused steps moved no running statistics.
    let fresh = build(false, 8).evaluate(floats_of(8), floats_of(8)).expect("evaluates").loss;
    assert_eq!(single.evaluate(floats_of(8), floats_of(8)).expect("evaluates").loss, fresh);
    // Several positions, or statistics that are known, are enough.
    build(true, 8).step(x(), x()).expect("a step");
    build(false, 4).step(x(), x()).expect("a step");
    let long = || floats([8, 3, 2]);
    let model = single_norm().linear("linear", 2, 2);
    let mut pipeline = trained(model, 8).build().expect("a pipeline");
    pipeline.step(long(), long()).expect("a step");
    // Measuring at the size of one sample says the same.
    let profiling = Profiling::new([1, 2]).runs(1).warm_up(0);
    let profile = trained(single_norm(), 2).profile(&profiling, x(), x());
    let error = profile.expect_err("refused").to_string();
    assert!(error.contains("layer `norm` normalizes"), "{error}");
}

/// Always the same values.
fn floats_of(samples: usize) -> Tensor<3> {
    let values = Tensor::<1, Int>::arange(0..3 * samples as i64, &Device::flex()).float();
    values.reshape([samples, 3, 1])
}

fn single_norm() -> Sequential<Tensor<3>> {
    let model = Sequential::<Tensor<3>>::new();
    model.push("norm", |device| Normalized { norm: BatchNorm::new(3, device) })
}
