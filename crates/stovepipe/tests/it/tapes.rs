//! Layers that share a tape: the same bits wherever tapes begin and end, for layers that are hard
//! on the order of sums.

use stovepipe::burn::module::{Lora, Module, Param};
use stovepipe::burn::nn::{Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe_testkit::{
    DIM, Down, LinearLayers, Tokens, Up, classifier, embed, same_on_any_cut, train,
};

/// Computes on its parameters alone before it uses them, again and again.
#[derive(Module, Debug)]
struct Normalized {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
}

impl Normalized {
    fn new(device: &Device) -> Self {
        let uniform = Initializer::Uniform { min: -0.5, max: 0.5 };
        let weight = || uniform.init([DIM, DIM], device);
        Self { first: weight(), second: weight() }
    }
}

impl Layer for Normalized {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        let unit = |w: Tensor<2>| w.clone() / (w.powi_scalar(2).sum_dim(1).sqrt() + 0.1);
        let (first, second) = (unit(self.first.val()), unit(self.second.val()));
        let product = unit(first.clone().matmul(second.clone()).transpose() + first.clone());
        let apply = |x: Tensor<3>, w: &Tensor<2>| x.matmul(w.clone().unsqueeze());
        // The input five times, each weight at least four times.
        let a = apply(x.clone(), &first) + apply(x.clone(), &second) * apply(x.clone(), &product);
        let b = apply(gelu(a.clone()), &first) + apply(x.clone(), &second);
        x + a * 0.3 + apply(b, &self.first.val()) * self.second.val().sum().reshape([1, 1, 1])
    }
}

/// Depends on its parameters alone, and looks at its input for its shape.
#[derive(Module, Debug)]
struct Ignorant {
    linear: Linear,
    norm: LayerNorm,
}

impl Layer for Ignorant {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        self.norm.forward(self.linear.forward(x.ones_like()))
    }
}

/// Adds to the loss, and uses its output for it several times.
#[derive(Module, Debug)]
struct Penalized {
    linear: Linear,
}

impl Layer for Penalized {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let y = self.linear.forward(x);
        let squares = y.clone() * y.clone() * 0.01;
        context.add_loss((squares + y.clone().abs() * 0.02 + y.clone() * 0.01).sum());
        y
    }
}

fn adapted(device: &Device) -> Linear {
    LinearConfig::new(DIM, DIM).init(device).no_grad().apply_lora(Lora::new(2, 4.0))
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(DIM, DIM).init(device)
}

/// Twelve layers of all kinds between embedding and head.
fn model() -> Sequential<Tokens, Tensor<3>> {
    embed()
        .push("normalized", Normalized::new)
        .push("again", Normalized::new)
        .push("outer", Down::at("outer"))
        .push_module("adapted", adapted, |m, x| m.forward(x))
        .push("ignorant", |d| Ignorant {
            linear: linear(d),
            norm: LayerNormConfig::new(DIM).init(d),
        })
        .push("after", Normalized::new)
        .push_fn("view", |x: Tensor<3>| x.swap_dims(0, 1).swap_dims(0, 1))
        .push("penalized", |d| Penalized { linear: linear(d) })
        .push_fn_with_context("drop", |x: Tensor<3>, context| context.dropout(x, 0.1))
        .push("popped", Up::at("outer"))
        .push("last", Normalized::new)
        .linear("tied", DIM, DIM)
        .head()
        .tie(["tied.weight", "penalized.linear.weight"])
}

#[test]
fn tapes_begin_and_end_anywhere() {
    same_on_any_cut(|| classifier(model()), train);
    same_on_any_cut(|| classifier(model()).clip_gradients(Clipping::Norm(0.5)), train);
}
