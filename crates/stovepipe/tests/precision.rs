//! Mixed precision and loss scaling, each against one stage, bit for bit; and a scale changes no bit of
//! what is in range.

mod common;

use common::{
    CLASSES, DIM, SEQ, Tokens, adam, batch, bits, is_the_same_on_any_number_of_stages, model, one,
    train,
};
use stovepipe::burn;
use stovepipe::burn::module::{Module, ModuleMapper, Param};
use stovepipe::burn::nn::{EmbeddingConfig, Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{DType, Device, FloatDType, Tensor};
use stovepipe::prelude::*;
use stovepipe::{BatchNorm, BuildError, Builder, LossScaling};

/// What needs care in 16 bits: randomness, statistics, an added loss, a skip.
#[derive(Module, Debug)]
struct Careful {
    up: Linear,
    norm: BatchNorm,
}

impl Layer for Careful {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut Context<'_>) -> Tensor<3> {
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

    fn forward(&self, x: Tensor<3>, context: &mut Context<'_>) -> Tensor<3> {
        self.linear.forward(x + context.pop::<Tensor<3>>("x"))
    }

    fn pops(&self) -> Vec<String> {
        vec!["x".to_owned()]
    }
}

fn careful() -> Sequential<Tokens, Tensor<3>> {
    Sequential::<Tokens>::new()
        .push_module("embed", |d| EmbeddingConfig::new(CLASSES, DIM).init(d), |m, x| m.forward(x))
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
            assert!(!step.skipped);
            (step.loss, step.added_loss)
        });
        let losses: Vec<_> = losses.collect();
        let parameters = pipeline.parameters().expect("parameters");
        // Parameters stay as precise as they were made.
        assert!(parameters.values().all(|data| data.dtype() == DType::F32));
        (losses, bits(&parameters))
    };
    let builder = || {
        let builder = adam(Pipeline::builder(careful()).loss(CrossEntropy));
        builder.compute_dtype(FloatDType::BF16).loss_scaling(LossScaling::dynamic())
    };
    is_the_same_on_any_number_of_stages(builder, run);
}

#[test]
fn sixteen_bits_come_close_to_thirty_two() {
    let losses = |dtype: Option<FloatDType>| {
        let builder = move || {
            let builder = adam(Pipeline::builder(model()).loss(CrossEntropy));
            match dtype {
                Some(dtype) => builder.compute_dtype(dtype).loss_scaling(LossScaling::dynamic()),
                None => builder,
            }
        };
        let mut pipeline = one(&builder);
        let (x, y) = batch(7, 0);
        // The first scales are too large for 16 bits.
        let step = || pipeline.step(x.clone(), y.clone()).expect("a step");
        let updates = std::iter::repeat_with(step).filter(|step| !step.skipped).take(20);
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
                let mut builder = adam(Pipeline::builder(model()).loss(CrossEntropy));
                if let Some(clipping) = clipping {
                    builder = builder.clip_gradients(clipping);
                }
                match scaling {
                    Some(scaling) => builder.loss_scaling(scaling),
                    None => builder,
                }
            }
        };
        let plain = train(one(&builder(None)));
        for scaling in [
            LossScaling::fixed(1.0),
            LossScaling::fixed(4096.0),
            LossScaling::dynamic().interval(1),
        ] {
            assert!(train(one(&builder(Some(scaling)))) == plain, "{clipping:?} {scaling:?}");
        }
        let scaled = builder(Some(LossScaling::dynamic()));
        assert!(is_the_same_on_any_number_of_stages(scaled, train) == plain);
    }
}

#[test]
fn an_overflow_on_one_stage_is_skipped_by_all() {
    let builder = |scale: f64| {
        move || {
            let builder = adam(Pipeline::builder(model()).loss(CrossEntropy));
            let builder = builder.compute_dtype(FloatDType::F16);
            builder.loss_scaling(LossScaling::dynamic().initial(scale))
        }
    };
    // Far more than 16 bits hold.
    let run = |mut pipeline: Pipeline<Tokens, Tensor<3>, Tokens>| {
        let before = bits(&pipeline.parameters().expect("parameters"));
        let (x, y) = batch(7, 0);
        let mut scales = Vec::new();
        while {
            let step = pipeline.step(x.clone(), y.clone()).expect("a step");
            scales.push(step.loss_scale);
            assert_eq!(step.skipped, step.gradient_norm.is_none_or(|norm| !norm.is_finite()));
            step.skipped
        } {
            assert!(bits(&pipeline.parameters().expect("parameters")) == before);
        }
        let (x, y) = batch(7, 1);
        let last = pipeline.step(x, y).expect("a step");
        scales.push(last.loss_scale);
        (scales, last.loss, bits(&pipeline.parameters().expect("parameters")))
    };
    let (scales, loss, parameters) =
        is_the_same_on_any_number_of_stages(builder(f64::from(1 << 24)), run);
    assert!(scales.len() > 3, "{scales:?}");
    // As if it had begun with the scale that works.
    let good = scales[scales.len() - 1];
    let (at_once, same_loss, same_parameters) = run(one(&builder(good)));
    assert_eq!(at_once, [good, good]);
    assert!(loss == same_loss && parameters == same_parameters);
}

type Values = Tensor<2>;

fn regression() -> Builder<Values, Values, Values> {
    let model = Sequential::<Values>::new()
        .push_module("up", |d| LinearConfig::new(4, 8).init(d), |m, x| m.forward(x))
        .push_fn_with_context("drop", |x: Values, context| context.dropout(x, 0.2))
        .push_module("down", |d| LinearConfig::new(8, 2).init(d), |m, x: Values| m.forward(x));
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
fn what_was_accumulated_survives_a_mini_batch_that_is_skipped() {
    let run = |scaling: Option<LossScaling>, poisoned: bool| {
        let builder = regression();
        let builder = match scaling {
            Some(scaling) => builder.loss_scaling(scaling),
            None => builder,
        };
        let mut pipeline = builder.build().expect("builds");
        let mut accumulate = |step, poisoned| {
            let (x, y) = values(step, poisoned);
            assert_eq!(pipeline.accumulate(x, y).expect("accumulates").skipped, poisoned);
        };
        accumulate(0, false);
        if poisoned {
            accumulate(1, true);
        }
        accumulate(2, false);
        if poisoned {
            let (x, y) = values(3, true);
            let step = pipeline.step(x, y).expect("a step");
            assert!(step.skipped && !step.loss.is_finite());
        }
        let (x, y) = values(4, false);
        let step = pipeline.step(x, y).expect("a step");
        assert!(!step.skipped);
        (step.loss, bits(&pipeline.parameters().expect("parameters")))
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

/// Makes parameters of 16 bits.
struct Halve;

impl ModuleMapper for Halve {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let value = value.inner().cast(FloatDType::F16);
        Param::from_mapped_value(id, Tensor::from_inner(value).require_grad(), mapper)
    }
}

#[test]
fn parameters_may_have_sixteen_bits() {
    let builder = || {
        let model = Sequential::<Tokens>::new()
            .push_module(
                "embed",
                |d| EmbeddingConfig::new(CLASSES, DIM).init(d).map(&mut Halve),
                |m, x| m.forward(x),
            )
            .push_module(
                "up",
                |d| LinearConfig::new(DIM, DIM).init(d).map(&mut Halve),
                |m, x: Tensor<3>| m.forward(x),
            )
            .push_fn("negated", |x: Tensor<3>| x.neg())
            .push_module(
                "head",
                |d| LinearConfig::new(DIM, CLASSES).init(d).map(&mut Halve),
                |m, x: Tensor<3>| m.forward(x),
            );
        let builder = Pipeline::builder(model).loss(CrossEntropy);
        // A weight and a scale whose product 16 bits don't hold.
        builder
            .optimizer(SgdConfig::new().init())
            .learning_rate(1.0)
            .loss_scaling(LossScaling::fixed(4096.0))
    };
    let (losses, _) = is_the_same_on_any_number_of_stages(builder, train);
    let mut pipeline = one(&builder);
    let (x, y) = batch(7, 0);
    let first = pipeline.step(x.clone(), y.clone()).expect("a step");
    assert_eq!(first.loss, losses[0]);
    assert!(pipeline.step(x, y).expect("a step").loss < first.loss - 0.01);
    let parameters = pipeline.parameters().expect("parameters");
    assert!(parameters.values().all(|data| data.dtype() == DType::F16));
}

#[test]
fn what_cannot_be_is_refused() {
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let built = regression().loss_scaling(LossScaling::fixed(scale)).build();
        assert!(matches!(built.err(), Some(BuildError::LossScale { .. })));
    }
    assert!(!Device::flex().supports_dtype(FloatDType::Flex32));
    let error = regression().compute_dtype(FloatDType::Flex32).build().err().expect("refused");
    let text = error.to_string();
    assert!(text.contains("Flex32") && text.contains(".compute_dtype("), "{text}");
}
