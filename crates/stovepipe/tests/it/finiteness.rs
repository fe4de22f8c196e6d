//! The search for the first number that isn't finite: the error names the layer, the micro-batch
//! and the direction, on any stage.

use stovepipe::burn::module::{Module, Param};
use stovepipe::burn::nn::Initializer;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::{Builder, LossSum, TrainError};
use stovepipe_testkit::vectors::{Floats, forward, linear, sgd};

/// Adds the root of a parameter that is zero: its gradient is infinite, and no value is.
#[derive(Module, Debug)]
struct Root {
    zero: Param<Tensor<1>>,
}

impl Layer for Root {
    type Input = Floats;
    type Output = Floats;

    fn forward(&self, x: Floats, _: &mut LayerContext<'_>) -> Floats {
        x + self.zero.val().sqrt().unsqueeze()
    }
}

/// Stashes a quotient by zero for the layer behind it, and returns what it was given.
#[derive(Module, Debug)]
struct Stash;

impl Layer for Stash {
    type Input = Floats;
    type Output = Floats;

    fn forward(&self, x: Floats, context: &mut LayerContext<'_>) -> Floats {
        context.stash("quotient", x.clone() / (x.clone() * 0.0));
        x
    }

    fn stashes(&self) -> Vec<String> {
        vec!["quotient".to_owned()]
    }
}

#[derive(Module, Debug)]
struct Pop;

impl Layer for Pop {
    type Input = Floats;
    type Output = Floats;

    fn forward(&self, x: Floats, context: &mut LayerContext<'_>) -> Floats {
        x + context.pop::<Floats>("quotient") * 0.0
    }

    fn pops(&self) -> Vec<String> {
        vec!["quotient".to_owned()]
    }
}

/// Three layers, of which the one in the middle is to be found at fault.
fn around<M>(middle: M) -> Sequential<Floats>
where
    M: FnOnce(Sequential<Floats>) -> Sequential<Floats>,
{
    let front = Sequential::new().push_module("front", linear, forward);
    middle(front).push_module("back", linear, forward)
}

/// Six samples, one of which is negative where a logarithm is taken.
fn samples() -> Floats {
    Tensor::ones([6, 4], &Device::flex())
}

/// Steps on one, two and three stages, and returns what all say, less the place.
fn said(builder: impl Fn() -> Builder<Floats, Floats, Floats>) -> String {
    let said = [1, 2, 3].map(|stages| {
        let builder = builder().find_non_finite(true).stages(stages).micro_batches(3);
        let mut pipeline = builder.layer_costs(LayerCosts::Uniform).build().expect("builds");
        let error = pipeline.step(samples(), samples()).expect_err("it is found");
        let TrainError::Step(_) = &error else { panic!("{error}") };
        let text = error.to_string();
        text.split_once("micro-batch").unwrap_or_else(|| panic!("{text}")).1.to_owned()
    });
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    said[0].clone()
}

#[test]
fn the_first_layer_whose_output_is_not_finite_is_named() {
    let log_of_last = || {
        around(|model| {
            model.push_fn_with_context("log", |x: Floats, context| {
                let sign = if context.samples().contains(&5) { -1.0 } else { 1.0 };
                (x.abs() * sign).log()
            })
        })
    };
    let said = said(|| sgd(log_of_last()));
    for part in [" 2, forward", "layer `log`: its output isn't finite"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_a_layer_stashes_is_looked_at() {
    let said = said(|| sgd(around(|model| model.push("stash", |_| Stash).push("pop", |_| Pop))));
    for part in [" 0, forward", "layer `stash`: the value that it stashes as `quotient`"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn the_first_gradient_that_is_not_finite_is_named() {
    let root = |device: &Device| Root { zero: Initializer::Zeros.init([4], device) };
    let said = said(|| sgd(around(|model| model.push("root", root))));
    for part in ["backward", "layer `root`: the gradient of `root.zero` isn't finite"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn losses_are_looked_at() {
    let loss = |output: Floats, target: Floats| {
        LossSum::of_terms((output - target).powi_scalar(2) * f32::INFINITY, 1.0)
    };
    let said = said(|| sgd(around(|model| model.push_fn("same", |x: Floats| x))).loss(loss));
    assert!(said.contains("forward: the loss isn't finite"), "{said}");
}

#[test]
fn nothing_is_looked_at_unless_it_is_asked_for() {
    let log = || around(|model| model.push_fn("log", |x: Floats| (x.abs() * -1.0).log()));
    let mut pipeline = sgd(log()).build().expect("builds");
    assert!(pipeline.step(samples(), samples()).expect("a step").loss.is_nan());
    // What is finite passes.
    let fine = around(|model| model);
    let mut pipeline = sgd(fine).find_non_finite(true).build().expect("builds");
    assert!(pipeline.step(samples(), samples()).expect("a step").loss.is_finite());
}
