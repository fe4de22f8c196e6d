//! The types of floats where layers compute in 16 bits: constants follow or are named, a layer can
//! stay in 32 bits, and what has 32 bits reaches the loss in them.

use stovepipe::burn::module::{Module, Param};
use stovepipe::burn::nn::{
    Initializer, Linear, LinearConfig, PositionalEncoding, PositionalEncodingConfig,
};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::{Boundary, BuildError, Builder};
use stovepipe_testkit::{
    DIM, LinearLayers, SEQ, Tokens, classifier, embed, same_on_any_cut, train,
};

fn encoding(device: &Device) -> PositionalEncoding {
    PositionalEncodingConfig::new(DIM).with_max_sequence_size(SEQ).init(device)
}

/// A layer with a table that none of Burn's mappers casts.
fn with_positions() -> Sequential<Tokens, Tensor<3>> {
    embed().push_module("positions", encoding, |m, x| m.forward(x)).linear("up", DIM, DIM).head()
}

/// A layer that casts its table by itself.
#[derive(Module, Debug)]
struct Positions {
    encoding: PositionalEncoding,
    linear: Linear,
}

impl Layer for Positions {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        assert_eq!(x.dtype(), self.encoding.sinusoids.dtype());
        self.linear.forward(self.encoding.forward(x))
    }

    fn cast_constants(mut self, dtype: FloatDType) -> Option<Self> {
        self.encoding.sinusoids = self.encoding.sinusoids.cast(dtype);
        Some(self)
    }
}

fn half<I: Boundary, O: Boundary, T>(builder: Builder<I, O, T>) -> Builder<I, O, T> {
    builder.compute_dtype(FloatDType::BF16)
}

#[test]
fn constants_that_cannot_follow_are_named() {
    let plain = || classifier(with_positions()).backend(Flex::new());
    let error = half(plain()).build().err().expect("refused").to_string();
    for part in ["`sinusoids`", "layer `positions`", "cast_constants", "full_precision"] {
        assert!(error.contains(part), "{error}");
    }
    // Nothing is cast where layers compute in the device's own type.
    plain().compute_dtype(FloatDType::F32).build().expect("builds");
    let exempt = || half(classifier(with_positions())).full_precision("positions");
    same_on_any_cut(exempt, train);
}

#[test]
fn constants_follow_where_a_layer_casts_them() {
    let model = || {
        let init = |d: &Device| Positions {
            encoding: encoding(d),
            linear: LinearConfig::new(DIM, DIM).init(d),
        };
        embed().push("positions", init).linear("up", DIM, DIM).head()
    };
    same_on_any_cut(|| half(classifier(model())), train);
}

/// Multiplies by one, so that there is something to train.
#[derive(Module, Debug)]
struct Scale {
    factor: Param<Tensor<1>>,
}

impl Layer for Scale {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
        x * self.factor.val().unsqueeze()
    }
}

/// Adds what 16 bits can't hold next to one.
#[derive(Module, Debug)]
struct Shift {
    by: Param<Tensor<1>>,
}

impl Layer for Shift {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
        x + self.by.val().unsqueeze()
    }

    fn full_precision(&self) -> bool {
        true
    }
}

fn scale() -> Sequential<Tensor<2>> {
    Sequential::new().push("scale", |d| Scale { factor: Initializer::Ones.init([1], d) })
}

fn shift(device: &Device) -> Shift {
    Shift { by: Initializer::Constant { value: 256.0 }.init([1], device) }
}

#[test]
fn what_has_32_bits_reaches_the_loss_in_them() {
    let cast_inside = || scale().push_fn("shift", |x: Tensor<2>| x.cast(FloatDType::F32) + 256.0);
    let rounded = || scale().push_fn("shift", |x: Tensor<2>| x + 256.0);
    let by_itself = || scale().push("shift", shift);
    let builder = |model: Sequential<Tensor<2>>| {
        let builder = half(Pipeline::builder(model)).loss(CrossEntropy).backend(Flex::new());
        builder.optimizer(SgdConfig::new().init()).learning_rate(1.0).micro_batches(1)
    };
    let by_name = || builder(rounded()).full_precision("shift");
    let found = |builder: Builder<Tensor<2>, Tensor<2>, Tensor<1, Int>>| {
        let device = Device::flex();
        let x = || Tensor::from_data([[0.0, 1.0]], &device);
        let y = || Tensor::from_data([1], &device);
        let mut pipeline = builder.build().expect("builds");
        let loss = pipeline.evaluate(x(), y()).expect("evaluates").loss;
        let output = pipeline.predict(x()).expect("predicts").into_data();
        let step = pipeline.step(x(), y()).expect("a step");
        assert_eq!(step.loss, loss);
        // The gradient of the factor: 1 · (softmax₁ - 1).
        let factor = pipeline.parameters().expect("parameters")["scale.factor"].clone();
        let factor = factor.iter::<f32>().next().expect("a value");
        (loss, output.iter::<f32>().collect::<Vec<_>>(), factor - 1.0)
    };
    for stages in [1, 2] {
        for builder in [builder(cast_inside()), builder(by_itself()), by_name()] {
            let (loss, output, change) = found(builder.stages(stages));
            assert!((loss - 0.313_262).abs() < 1e-6, "{loss}");
            assert_eq!(output, [256.0, 257.0]);
            assert!((change - 0.268_941).abs() < 2e-3, "{change}");
        }
        let (loss, output, _) = found(builder(rounded()).stages(stages));
        assert!((loss - 2.0_f64.ln()).abs() < 1e-6, "{loss}");
        assert_eq!(output, [256.0, 256.0]);
    }
}

#[test]
fn full_precision_has_the_parameters_own_bits() {
    let model = || {
        embed()
            .push_fn("half", |x: Tensor<3>| {
                assert_eq!(x.dtype(), DType::BF16);
                x
            })
            .push_fn("full", |x: Tensor<3>| {
                assert_eq!(x.dtype(), DType::F32);
                x.clone().mul_scalar(1.001) + x
            })
            .push_fn("half again", |x: Tensor<3>| {
                assert_eq!(x.dtype(), DType::BF16);
                x
            })
            .head()
    };
    let builder = || half(classifier(model())).full_precision("full").full_precision("head");
    same_on_any_cut(builder, train);
}

#[test]
fn settings_for_layers_that_are_not_there_are_refused() {
    let plain = || classifier(with_positions()).backend(Flex::new());
    for (method, builder) in [
        ("full_precision", plain().full_precision("position")),
        ("allow_unreplayable", plain().allow_unreplayable("position")),
    ] {
        let error = builder.build().err().expect("refused");
        assert!(matches!(error, BuildError::UnknownLayer { .. }));
        let error = error.to_string();
        for part in [method, "\"position\"", "\"positions\""] {
            assert!(error.contains(part), "{error}");
        }
    }
}
