//! Mixed precision and loss scaling, each against one stage, bit for bit; and a scale changes no
//! bit of what is in range.

use stovepipe::burn::module::{Module, ModuleMapper, Param};
use stovepipe::burn::nn::{BatchNormConfig, EmbeddingConfig, Initializer, Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use stovepipe::prelude::*;
use stovepipe::{BatchNorm, BuildError, Builder, LossScaling};
use stovepipe_testkit::{
    CLASSES, DIM, LinearLayers, SEQ, Tokens, batch, bits, classifier, embed, on_one_stage,
    parameter_bits, same_on_any_cut, toy, train,
};

/// Does what needs care in 16 bits: randomness, statistics, an added loss, a skip.
#[derive(Module, Debug)]
struct Careful {
    up: Linear,
    norm: BatchNorm,
}

impl Layer for Careful {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        assert_eq!(x.dtype(), DType::BF16);
        context.stash("x", x.clone());
        let x = context.dropout(self.up.forward(x), 0.2);
        context.add_loss(x.clone().powi_scalar(2).mean());
        let x = self.norm.forward(x.swap_dims(1, 2), context).swap_dims(1, 2);
        x + context.side_input::<Tensor<3>>("bias")
    }

    fn stashes(&self) -> Vec<String> {
        vec!["x".to_owned()]
    }
}

#[derive(Module, Debug)]
struct Head {
    linear: Linear,
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        self.linear.forward(x + context.pop::<Tensor<3>>("x"))
    }

    fn pops(&self) -> Vec<String> {
        vec!["x".to_owned()]
    }
}

fn careful() -> Sequential<Tokens, Tensor<3>> {
    embed()
        .push("careful", |d| Careful {
            up: LinearConfig::new(DIM, DIM).init(d),
            norm: BatchNorm::new(DIM, d),
        })
        .push_fn("negated", |x: Tensor<3>| x.neg())
        .push("head", |d| Head { linear: LinearConfig::new(DIM, CLASSES).init(d) })
}

#[test]
fn layers_compute_in_sixteen_bits_on_any_number_of_stages() {
    let run = |mut pipeline: Pipeline<Tokens, Tensor<3>, Tokens>| {
        let losses = (0..3).map(|step| {
            let (x, y) = batch(7, step);
            let bias = Tensor::<3>::ones([7, SEQ, DIM], &Device::flex()) * 0.1;
            let step = pipeline.side_input("bias", bias).step(x, y).expect("a step");
            assert!(!step.overflowed);
            (step.loss, step.added_loss)
        });
        let losses: Vec<_> = losses.collect();
        let parameters = pipeline.parameters().expect("parameters");
        // Parameters stay as precise as they were made.
        assert!(parameters.values().all(|data| data.dtype() == DType::F32));
        (losses, bits(&parameters))
    };
    let builder = || {
        let builder = classifier(careful());
        builder.compute_dtype(FloatDType::BF16).loss_scaling(LossScaling::dynamic())
    };
    same_on_any_cut(builder, run);
}

#[test]
fn sixteen_bits_come_close_to_thirty_two() {
    let losses = |dtype: Option<FloatDType>| {
        let builder = move || {
            let builder = classifier(toy());
            match dtype {
                Some(dtype) => builder.compute_dtype(dtype).loss_scaling(LossScaling::dynamic()),
                None => builder,
            }
        };
        let mut pipeline = on_one_stage(builder());
        let (x, y) = batch(7, 0);
        // The first scales are too large for 16 bits.
        let step = || pipeline.step(x.clone(), y.clone()).expect("a step");
        let updates = std::iter::repeat_with(step).filter(|step| !step.overflowed).take(20);
        assert_eq!(updates.count(), 20);
        let predicted = pipeline.predict(x.clone()).expect("predicts");
        assert_eq!(predicted.dtype(), DType::F32);
        pipeline.evaluate(x, y).expect("evaluates").loss
    };
    let precise = losses(None);
    for (dtype, tolerance) in [(FloatDType::BF16, 0.05), (FloatDType::F16, 0.01)] {
        let found = losses(Some(dtype));
        assert!((found / precise - 1.0).abs() < tolerance, "{dtype:?}: {found}, {precise}");
        assert_ne!(found, precise);
    }
}

#[test]
fn scaling_by_a_power_of_two_changes_no_bit() {
    for clipping in [None, Some(Clipping::Norm(0.5)), Some(Clipping::Value(0.01))] {
        let builder = |scaling: Option<LossScaling>| {
            move || {
                let mut builder = classifier(toy());
                if let Some(clipping) = clipping {
                    builder = builder.clip_gradients(clipping);
                }
                match scaling {
                    Some(scaling) => builder.loss_scaling(scaling),
                    None => builder,
                }
            }
        };
        let plain = train(on_one_stage(builder(None)()));
        for scaling in [
            LossScaling::fixed(1.0),
            LossScaling::fixed(4096.0),
            LossScaling::dynamic().interval(1),
        ] {
            assert!(
                train(on_one_stage(builder(Some(scaling))())) == plain,
                "{clipping:?} {scaling:?}"
            );
        }
        let scaled = builder(Some(LossScaling::dynamic()));
        assert!(same_on_any_cut(scaled, train) == plain);
    }
}

#[test]
fn an_overflow_on_one_stage_updates_none() {
    let builder = |scale: f64| {
        move || {
            let builder = classifier(toy());
            let builder = builder.compute_dtype(FloatDType::F16);
            builder.loss_scaling(LossScaling::dynamic().initial(scale))
        }
    };
    // Far more than 16 bits hold.
    let run = |mut pipeline: Pipeline<Tokens, Tensor<3>, Tokens>| {
        let before = parameter_bits(&mut pipeline);
        let (x, y) = batch(7, 0);
        let mut scales = Vec::new();
        while {
            let step = pipeline.step(x.clone(), y.clone()).expect("a step");
            scales.push(step.loss_scale);
            assert_eq!(step.overflowed, step.gradient_norm.is_none_or(|norm| !norm.is_finite()));
            step.overflowed
        } {
            assert!(parameter_bits(&mut pipeline) == before);
        }
        let (x, y) = batch(7, 1);
        let last = pipeline.step(x, y).expect("a step");
        scales.push(last.loss_scale);
        (scales, last.loss, parameter_bits(&mut pipeline))
    };
    let (scales, loss, parameters) = same_on_any_cut(builder(f64::from(1 << 24)), run);
    assert!(scales.len() > 3, "{scales:?}");
    // As if it had begun with the scale that works.
    let good = scales[scales.len() - 1];
    let (at_once, same_loss, same_parameters) = run(on_one_stage(builder(good)()));
    assert_eq!(at_once, [good, good]);
    assert!(loss == same_loss && parameters == same_parameters);
}

/// Adds the root of a parameter that is zero: all values are finite, its gradient isn't.
#[derive(Module, Debug)]
struct Root {
    zero: Param<Tensor<1>>,
}

impl Layer for Root {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        x + self.zero.val().sqrt().reshape([1, 1, DIM])
    }
}

#[test]
fn one_layer_that_overflows_stops_all_others() {
    for place in 0..4 {
        let builder = || {
            let mut model = embed();
            for layer in 0..4 {
                model = match layer == place {
                    true => {
                        model.push("root", |d| Root { zero: Initializer::Zeros.init([DIM], d) })
                    }
                    false => model.linear(format!("up.{layer}"), DIM, DIM),
                };
            }
            let model = model.head();
            classifier(model).loss_scaling(LossScaling::dynamic())
        };
        same_on_any_cut(builder, |mut pipeline| {
            let before = parameter_bits(&mut pipeline);
            let (x, y) = batch(7, 0);
            let gradients = pipeline.gradients(x.clone(), y.clone()).expect("gradients");
            assert!(gradients.overflowed);
            let finite = |data: &TensorData| data.iter::<f32>().all(f32::is_finite);
            let infinite = gradients.gradients.iter().filter(|(_, data)| !finite(data));
            assert_eq!(infinite.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["root.zero"]);
            let step = pipeline.step(x, y).expect("a step");
            assert!(step.overflowed && step.loss.is_finite());
            // The look at the gradients has already lowered it.
            assert_eq!(step.loss_scale, 32768.0);
            assert!(parameter_bits(&mut pipeline) == before);
        });
    }
}

#[test]
fn what_enters_a_layer_is_of_the_type_that_it_computes_in() {
    // A sum in 32 bits, as for a norm.
    let model = || {
        embed()
            .push_fn("wide", |x: Tensor<3>| {
                let wide = x.cast(FloatDType::F32);
                wide.clone() / (wide.abs().sum_dim(2) + 1.0)
            })
            .push_fn_with_context("noise", |x: Tensor<3>, context| {
                assert_eq!(x.dtype(), DType::BF16);
                x.clone() + context.normal(&x) * 0.1 + context.uniform(&x) * 0.1
            })
            .head()
    };
    let builder = || {
        let builder = classifier(model());
        builder.compute_dtype(FloatDType::BF16).loss_scaling(LossScaling::fixed(256.0))
    };
    let (losses, _) = same_on_any_cut(builder, train);
    assert!(losses.iter().all(|loss| loss.is_finite()));
}

#[test]
fn noise_is_finite_in_sixteen_bits() {
    // One of 512 numbers from 0 to 1 would be rounded to 1.
    let model = || {
        Sequential::<Values>::new().push_fn_with_context("noise", |x: Values, context| {
            let uniform = context.uniform(&x);
            assert!(uniform.to_data().iter::<f32>().all(|u| (0.0..1.0).contains(&u)));
            let normal = context.normal(&x);
            let values: Vec<f64> = normal.to_data().iter::<f64>().collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance =
                values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
            assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
            x + normal
        })
    };
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        let builder = Pipeline::builder(model()).backend(Flex::new()).compute_dtype(dtype);
        let mut pipeline = builder.build().expect("builds");
        let output = pipeline.predict(Tensor::zeros([2, 20_000], &Device::flex()));
        assert!(output.expect("predicts").into_data().iter::<f32>().all(f32::is_finite));
    }
}

type Values = Tensor<2>;

fn regression() -> Builder<Values, Values, Values> {
    let model = Sequential::<Values>::new()
        .linear("up", 4, 8)
        .push_fn_with_context("drop", |x: Values, context| context.dropout(x, 0.2))
        .linear("down", 8, 2);
    let builder = Pipeline::builder(model).loss(MeanSquaredError).backend(Flex::new());
    builder
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .stages(3)
        .micro_batches(2)
        .layer_costs(LayerCosts::Uniform)
}

fn values(step: usize, poisoned: bool) -> (Values, Values) {
    let device = Device::flex();
    let fill = |width: usize| {
        let values = (0..6 * width).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.1);
        Tensor::<1>::from_data(values.collect::<Vec<_>>().as_slice(), &device).reshape([6, width])
    };
    let target = if poisoned { fill(2) * f32::INFINITY } else { fill(2) };
    (fill(4), target)
}

#[test]
fn what_was_accumulated_survives_a_mini_batch_that_overflows() {
    let run = |scaling: Option<LossScaling>, poisoned: bool| {
        let builder = regression();
        let builder = match scaling {
            Some(scaling) => builder.loss_scaling(scaling),
            None => builder,
        };
        let mut pipeline = builder.build().expect("builds");
        let mut accumulate = |step, poisoned| {
            let (x, y) = values(step, poisoned);
            assert_eq!(pipeline.accumulate(x, y).expect("accumulates").overflowed, poisoned);
        };
        accumulate(0, false);
        if poisoned {
            accumulate(1, true);
        }
        accumulate(2, false);
        if poisoned {
            let (x, y) = values(3, true);
            let step = pipeline.step(x, y).expect("a step");
            assert!(step.overflowed && !step.loss.is_finite());
        }
        let (x, y) = values(4, false);
        let step = pipeline.step(x, y).expect("a step");
        assert!(!step.overflowed);
        (step.loss, parameter_bits(&mut pipeline))
    };
    let plain = run(None, false);
    for scaling in [LossScaling::fixed(1.0), LossScaling::dynamic().initial(64.0)] {
        assert!(run(Some(scaling), true) == plain);
    }
    // Without, it is an error where the norm is looked at.
    let mut pipeline = regression().clip_gradients(Clipping::Norm(1.0)).build().expect("builds");
    let (x, y) = values(0, true);
    let error = pipeline.step(x, y).expect_err("refused").to_string();
    assert!(error.contains(".loss_scaling("), "{error}");
}

/// Makes parameters of another type.
struct Halve(FloatDType);

impl ModuleMapper for Halve {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let value = value.inner().cast(self.0);
        Param::from_mapped_value(id, Tensor::from_inner(value).require_grad(), mapper)
    }
}

#[test]
fn parameters_may_have_sixteen_bits() {
    for (dtype, stored) in [(FloatDType::F16, DType::F16), (FloatDType::BF16, DType::BF16)] {
        let builder = move || {
            let model = Sequential::<Tokens>::new()
                .push_module(
                    "embed",
                    move |d| EmbeddingConfig::new(CLASSES, DIM).init(d).map(&mut Halve(dtype)),
                    |m, x| m.forward(x),
                )
                .push_module(
                    "up",
                    move |d| LinearConfig::new(DIM, DIM).init(d).map(&mut Halve(dtype)),
                    |m, x: Tensor<3>| m.forward(x),
                )
                .push_fn("negated", |x: Tensor<3>| x.neg())
                .push_module(
                    "head",
                    move |d| LinearConfig::new(DIM, CLASSES).init(d).map(&mut Halve(dtype)),
                    |m, x: Tensor<3>| m.forward(x),
                );
            let builder = Pipeline::builder(model).loss(CrossEntropy);
            // A weight and a scale whose product 16 bits don't hold.
            builder
                .optimizer(SgdConfig::new().init())
                .learning_rate(1.0)
                .loss_scaling(LossScaling::fixed(4096.0))
        };
        let (losses, _) = same_on_any_cut(builder, train);
        let mut pipeline = on_one_stage(builder());
        let (x, y) = batch(7, 0);
        let first = pipeline.step(x.clone(), y.clone()).expect("a step");
        assert_eq!(first.loss, losses[0]);
        assert!(pipeline.step(x, y).expect("a step").loss < first.loss - 0.01);
        let parameters = pipeline.parameters().expect("parameters");
        assert!(parameters.values().all(|data| data.dtype() == stored));
    }
}

#[test]
fn tied_gradients_add_up_beyond_sixteen_bits() {
    // Each use's gradient is within range, their sum isn't, and the mean is again.
    let tied = |dtype: FloatDType| {
        move || {
            let up = move |d: &Device| {
                LinearConfig::new(DIM, DIM).with_bias(false).init(d).map(&mut Halve(dtype))
            };
            let model = Sequential::<Values>::new()
                .push_module("one", up, |m, x: Values| m.forward(x))
                .push_module("two", up, |m, x: Values| m.forward(x))
                .tie(["one.weight", "two.weight"]);
            Pipeline::builder(model)
                .backend(Flex::new())
                .optimizer(SgdConfig::new().init())
                .learning_rate(0.5)
                .loss(|output: Values, _: Values| LossSum::new(output.sum(), 1e6))
                .loss_scaling(LossScaling::fixed(8192.0))
        }
    };
    let step = |dtype| {
        let mut pipeline = tied(dtype)().stages(2).micro_batches(1).build().expect("builds");
        let x = Tensor::<2>::ones([4, DIM], &Device::flex());
        let x = if dtype == FloatDType::F16 { x.cast(FloatDType::F16) } else { x };
        let step = pipeline.step(x, Tensor::zeros([4, 1], &Device::flex())).expect("a step");
        assert!(!step.overflowed);
        let parameters = pipeline.parameters().expect("parameters");
        parameters["one.weight"].iter::<f64>().collect::<Vec<_>>()
    };
    let (half, full) = (step(FloatDType::F16), step(FloatDType::F32));
    for (half, full) in half.iter().zip(full) {
        assert!((half - full).abs() < 2e-3, "{half} {full}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let built = regression().loss_scaling(LossScaling::fixed(scale)).build();
        assert!(matches!(built.err(), Some(BuildError::LossScale { .. })));
    }
    for dtype in [FloatDType::Flex32, FloatDType::F64] {
        let error = regression().compute_dtype(dtype).build().err().expect("refused");
        let text = error.to_string();
        assert!(text.contains(&format!("{dtype:?}")) && text.contains(".compute_dtype("), "{text}");
    }
    let model = Sequential::<Values>::new().push_module(
        "norm",
        |d| BatchNormConfig::new(4).init(d),
        |m, x: Values| m.forward(x),
    );
    let builder = Pipeline::builder(model).backend(Flex::new()).compute_dtype(FloatDType::BF16);
    let error = builder.build().err().expect("refused").to_string();
    assert!(error.contains("BatchNorm in layer `norm`"), "{error}");
}
