//! A user's module says what trains, however it was made, adapted, frozen or named; and what
//! can't train is refused or reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stovepipe::burn::module::{Lora, Module, ParamGroup, QLora, Quantizer};
use stovepipe::burn::nn::{EmbeddingConfig, Linear};
use stovepipe::burn::optim::{ModuleOptimizer, MuonConfig, SgdConfig};
use stovepipe::burn::tensor::quantization::{Calibration, QuantValue};
use stovepipe::burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use stovepipe::prelude::*;
use stovepipe::{BuildError, Builder};
use stovepipe_testkit::vectors::{Floats, forward, linear, sgd};
use stovepipe_testkit::{
    Bits, CLASSES, CountingFlex, DIM, Down, LinearLayers, Tokens, Up, adam, batch, classifier,
    floats, on_one_stage, parameter_bits, relative_difference, same_on_any_cut, toy,
    train as train_tokens,
};

/// Holds a linear layer in a field named `b`.
#[derive(Module, Debug)]
struct Wrap {
    b: Linear,
}

fn wrap(device: &Device) -> Wrap {
    Wrap { b: linear(device) }
}

#[test]
fn two_parameters_with_one_path_are_refused() {
    let model = || Sequential::<Floats>::new();
    let wrapped = |model: Sequential<Floats>, name: &str| {
        model.push_module(name, wrap, |m, x: Floats| m.b.forward(x))
    };
    let list = |device: &Device| vec![linear(device), linear(device)];
    let listed = |model: Sequential<Floats>, name: &str| {
        model.push_module(name, list, |m, x: Floats| m[1].forward(m[0].forward(x)))
    };
    let nested = |device: &Device| vec![wrap(device)];
    let cases = [
        (wrapped(model(), "a").linear("a.b", 4, 4), "a.b.weight", "a", "b.weight", "a.b", "weight"),
        (wrapped(model().linear("a.b", 4, 4), "a"), "a.b.weight", "a.b", "weight", "a", "b.weight"),
        (listed(model(), "a").linear("a.1", 4, 4), "a.1.weight", "a", "1.weight", "a.1", "weight"),
        (
            model()
                .push_module("a", nested, |m, x: Floats| m[0].b.forward(x))
                .linear("a.0.b", 4, 4),
            "a.0.b.weight",
            "a",
            "0.b.weight",
            "a.0.b",
            "weight",
        ),
        (
            wrapped(listed(model(), "a"), "a.1").linear("a.1.b", 4, 4),
            "a.1.b.weight",
            "a.1",
            "b.weight",
            "a.1.b",
            "weight",
        ),
    ];
    for (model, whole, layer, path, other_layer, other_path) in cases {
        let error = sgd(model).build().err().expect("refused");
        assert!(matches!(error, BuildError::PathTwice { .. }), "{error}");
        let expected = format!(
            "two parameters go by the path `{whole}`: `{path}` of layer `{layer}` and \
             `{other_path}` of layer `{other_layer}`;"
        );
        assert!(error.to_string().starts_with(&expected), "{error}, not {expected}");
    }
    // Names may hold dots as long as paths differ.
    let different = listed(wrapped(model(), "a"), "b").linear("a.c", 4, 4).linear("b.2", 4, 4);
    let mut pipeline = sgd(different).stages(2).build().expect("a pipeline");
    assert_eq!(pipeline.parameters().expect("parameters").len(), 10);
    let gradients = pipeline.gradients(floats([4, 4]), floats([4, 4])).expect("gradients");
    assert_eq!(gradients.gradients.len(), 10);
}

#[test]
fn a_pipeline_in_which_nothing_trains_is_refused() {
    let frozen = || {
        let model = Sequential::<Floats>::new();
        model.push_module("frozen", |d| linear(d).no_grad(), forward).push_fn("twice", |x| x * 2.0)
    };
    let error = sgd(frozen()).build().err().expect("refused");
    assert!(matches!(error, BuildError::NothingTrains), "{error}");
    let empty = Sequential::<Floats>::new().push_fn("twice", |x: Floats| x * 2.0);
    let error = sgd(empty).build().err().expect("refused");
    assert!(error.to_string().contains("nothing in the model can be trained"), "{error}");
    // One parameter is enough, and predictions need none.
    assert!(sgd(frozen().linear("head", 4, 4)).build().is_ok());
    let mut predicts = Pipeline::builder(frozen()).backend(Flex::new()).build().expect("builds");
    assert_eq!(predicts.predict(floats([3, 4])).expect("predicts").dims(), [3, 4]);
}

/// Trains three steps on made-up floats, and returns the losses and the parameters after them.
fn train(mut pipeline: Pipeline<Floats, Floats, Floats>) -> (Vec<f64>, Bits) {
    let numbers = (0..28).map(|i| (i * 7 % 11) as f32 / 11.0).collect::<Vec<_>>();
    let x = Floats::from_data(TensorData::new(numbers, [7, 4]), &Device::flex());
    let losses = (0..3).map(|_| pipeline.step(x.clone(), x.clone().sin()).expect("a step").loss);
    (losses.collect(), parameter_bits(&mut pipeline))
}

/// Builds pipelines of these two linear layers, with a function behind each.
fn two_linears(
    make: impl Fn(&Device) -> Linear + Clone + Send + Sync + 'static,
) -> impl Fn() -> Builder<Floats, Floats, Floats> {
    move || {
        let model = Sequential::<Floats>::new()
            .push_module("a", make.clone(), forward)
            .push_fn("tanh", Tensor::tanh)
            .push_module("b", make.clone(), forward)
            .push_fn("double", |x: Floats| x * 2.0);
        adam(Pipeline::builder(model).loss(MeanSquaredError))
    }
}

/// Trains on every cut. Checks that the loss falls and that exactly these parameters have
/// gradients and move; returns what moved.
fn only_these_train(builder: impl Fn() -> Builder<Floats, Floats, Floats>, expected: &[&str]) {
    let before = parameter_bits(&mut on_one_stage(builder()));
    let (losses, after) = same_on_any_cut(&builder, train);
    assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    let moved: Vec<&String> =
        after.iter().filter(|(path, bits)| before[*path] != **bits).map(|(path, _)| path).collect();
    assert_eq!(moved, expected);
    let mut pipeline = on_one_stage(builder());
    let gradients = pipeline.gradients(floats([4, 4]), floats([4, 4])).expect("gradients");
    assert!(gradients.gradients.keys().eq(expected), "{:?}", gradients.gradients.keys());
}

const ADAPTERS: [&str; 4] =
    ["a.weight.lora.a", "a.weight.lora.b", "b.weight.lora.a", "b.weight.lora.b"];

#[test]
fn adapters_train_and_what_they_adapt_stays() {
    let lora = || Lora::new(2, 4.0);
    // After one step the second factor isn't zero, so that the first gets a gradient too.
    only_these_train(two_linears(move |d| linear(d).apply_lora(lora())), &ADAPTERS);
    // Biases too, where the module says so.
    let bases = ParamGroup::from_path("weight");
    let with_biases = move |d: &Device| {
        let others = ParamGroup::all().exclude(bases.clone());
        linear(d).apply_lora(lora()).unfreeze_group(others)
    };
    let [a, b, c, d] = ADAPTERS;
    only_these_train(two_linears(with_biases), &["a.bias", a, b, "b.bias", c, d]);
    // Adapters compute in 16 bits like everything else.
    let narrow = two_linears(move |d| linear(d).apply_lora(lora()));
    same_on_any_cut(|| narrow().compute_dtype(FloatDType::BF16), train);
}

#[test]
fn adapters_of_quantized_weights_train_and_the_weights_stay_packed() {
    let quantized = |d: &Device| {
        let scheme = d.settings().quantization.scheme.with_value(QuantValue::Q8S);
        let mut group = Quantizer::new(Calibration::MinMax, scheme);
        group.set_param_group(ParamGroup::from_path("weight"));
        linear(d).apply_qlora(QLora::new(Lora::new(2, 4.0), group))
    };
    only_these_train(two_linears(quantized), &ADAPTERS);
    let mut pipeline = on_one_stage(two_linears(quantized)());
    let weight = pipeline.parameters().expect("parameters").remove("a.weight").expect("there");
    assert!(matches!(weight.dtype(), DType::QFloat(_)), "{:?}", weight.dtype());
}

#[test]
fn modules_train_however_they_were_made() {
    let all = ["a.bias", "a.weight", "b.bias", "b.weight"];
    let plain = two_linears(linear);
    only_these_train(&plain, &all);
    let expected = train(on_one_stage(plain()));
    // Made for evaluation, or on a device without autodiff: the same.
    let made: [fn(&Device) -> Linear; 3] = [
        |d| linear(d).valid(),
        |d| linear(&d.clone().inner()),
        |d| linear(&d.clone().inner()).no_grad().unfreeze(),
    ];
    for make in made {
        assert!(train(on_one_stage(two_linears(make)())) == expected);
    }
    // Made before, and cloned or loaded where a layer is wanted.
    for device in [Device::flex(), Device::flex().autodiff()] {
        let (a, b) = (linear(&device), linear(&device));
        let cloned = move || {
            let (a, b) = (a.clone(), b.clone());
            let model = Sequential::<Floats>::new()
                .push_module("a", move |_| a.clone(), forward)
                .push_fn("tanh", Tensor::tanh)
                .push_module("b", move |_| b.clone(), forward)
                .push_fn("double", |x: Floats| x * 2.0);
            adam(Pipeline::builder(model).loss(MeanSquaredError))
        };
        only_these_train(cloned, &all);
        let (a, b) = (linear(&device), linear(&device));
        let loaded = move || {
            let (a, b) = (a.clone(), b.clone());
            let load =
                |d: &Device, from: &Linear| linear(d).load_record(from.clone().into_record());
            let model = Sequential::<Floats>::new()
                .push_module("a", move |d| load(d, &a), forward)
                .push_fn("tanh", Tensor::tanh)
                .push_module("b", move |d| load(d, &b), forward)
                .push_fn("double", |x: Floats| x * 2.0);
            adam(Pipeline::builder(model).loss(MeanSquaredError))
        };
        only_these_train(loaded, &all);
    }
    // What is frozen stays, on whatever device it was made.
    let frozen: [fn(&Device) -> Linear; 4] = [
        |d| linear(d).freeze_group(ParamGroup::from_path("weight")),
        |d| linear(&d.clone().inner()).freeze_group(ParamGroup::from_path("weight")),
        |d| linear(d).freeze_group(ParamGroup::from_path("weight")).valid(),
        |d| {
            let mut module = linear(d);
            module.weight = module.weight.map(|weight| weight.set_require_grad(false));
            module
        },
    ];
    for make in frozen {
        only_these_train(two_linears(make), &["a.bias", "b.bias"]);
    }
}

#[test]
fn what_gets_no_gradient_is_named() {
    // The second output of `fork` is thrown away by `join`.
    let unused = ["fork.right.bias", "fork.right.weight"];
    let named = same_on_any_cut(
        || classifier(toy()),
        |mut pipeline| {
            let (x, y) = batch(7, 0);
            pipeline.step(x, y).expect("a step").without_gradient
        },
    );
    let mut sorted = named.clone();
    sorted.sort();
    assert_eq!(sorted, unused);

    // A tied parameter has one if any of its uses has; what is frozen needs none.
    let tied = |ties: &[[&str; 2]]| {
        let wasted = |m: &Linear, x: Floats| (m.forward(x.clone()) * 0.0).detach() + x;
        let frozen = |d: &Device| linear(d).no_grad();
        let model = Sequential::<Floats>::new()
            .linear("a", 4, 4)
            .push_module("b", linear, wasted)
            .push_module("c", linear, wasted)
            .push_module("d", frozen, wasted);
        let model = ties.iter().fold(model, |model, tie| model.tie(*tie));
        let mut pipeline = sgd(model).stages(3).micro_batches(2).build().expect("a pipeline");
        let mut step = || pipeline.step(floats([4, 4]), floats([4, 4])).expect("a step");
        let mut paths = step().without_gradient;
        paths.sort();
        paths
    };
    assert_eq!(tied(&[]), ["b.bias", "b.weight", "c.bias", "c.weight"]);
    assert_eq!(tied(&[["a.weight", "b.weight"]]), ["b.bias", "c.bias", "c.weight"]);
    assert_eq!(tied(&[["b.weight", "c.weight"]]), ["b.bias", "b.weight", "c.bias"]);
}

#[test]
fn accumulated_gradients_count_as_gradients() {
    let unless_zero = |m: &Linear, x: Floats| match x.clone().max().into_scalar::<f32>() > 0.0 {
        true => m.forward(x),
        false => x,
    };
    let model = Sequential::<Floats>::new().push_module("a", linear, unless_zero);
    let mut pipeline = sgd(model.linear("b", 4, 4)).build().expect("a pipeline");
    let full = |value: f32| Floats::full([4, 4], value, &Device::flex());
    pipeline.accumulate(full(1.0), full(1.0)).expect("gradients");
    let step = pipeline.step(full(0.0), full(1.0)).expect("a step");
    assert!(step.without_gradient.is_empty(), "{:?}", step.without_gradient);
    let step = pipeline.step(full(0.0), full(1.0)).expect("a step");
    assert_eq!(step.without_gradient, ["a.weight", "a.bias"]);
}

#[test]
fn an_optimizer_that_cannot_take_a_parameter_is_refused() {
    let build = |optimizer: ModuleOptimizer, freeze: bool| {
        let make = move |d: &Device| {
            let biases = ParamGroup::from_path("bias");
            if freeze { linear(d).freeze_group(biases) } else { linear(d) }
        };
        let model = Sequential::<Floats>::new().push_module("a", make, forward);
        sgd(model).optimizer(optimizer).build()
    };
    let error = build(MuonConfig::new().init(), false).err().expect("refused");
    assert!(matches!(error, BuildError::Optimizer { .. }), "{error}");
    let error = error.to_string();
    assert!(error.starts_with("the optimizer can't update `a.bias` of shape [4]: "), "{error}");
    // What it isn't used for doesn't matter.
    let biases = ParamGroup::from_predicate("bias");
    let by_group = MuonConfig::new().init().with_group(biases, SgdConfig::new().build(), None);
    for (optimizer, freeze) in [(by_group, false), (MuonConfig::new().init(), true)] {
        let mut pipeline = build(optimizer, freeze).expect("a pipeline");
        pipeline.step(floats([4, 4]), floats([4, 4])).expect("a step");
    }
}

#[test]
fn nothing_is_spent_in_front_of_what_trains() {
    let (backend, received) = CountingFlex::new(|_| true);
    let forwards = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&forwards);
    let mut model = Sequential::<Floats>::new();
    for number in 0..4 {
        let count = Arc::clone(&count);
        let constant = move |m: &Linear, x: Floats| {
            assert!(!x.is_tracked(), "a tape is recorded");
            count.fetch_add(1, Ordering::SeqCst);
            m.forward(x).tanh()
        };
        model = model.push_module(format!("{number}"), |d| linear(d).no_grad(), constant);
    }
    let model = model.push_module("head", linear, |m, x: Floats| {
        assert!(!x.is_tracked(), "the gradient of the input is computed");
        m.forward(x)
    });
    let builder = sgd(model).backend(backend).stages(5).micro_batches(4);
    let mut pipeline = builder.checkpoint(recompute::Always).build().expect("a pipeline");
    let step = pipeline.step(floats([4, 4]), floats([4, 4])).expect("a step");
    assert!(step.without_gradient.is_empty());
    let program = pipeline.program(4).expect("a program").to_string();
    assert!(program.contains("SEND_F") && !program.contains("SEND_B"), "{program}");
    // Each micro-batch: the input, four values and the target. No layer runs again.
    assert_eq!(received.load(Ordering::SeqCst), 4 * 6);
    assert_eq!(forwards.load(Ordering::SeqCst), 4 * 4);
}

#[test]
fn gradients_are_the_same_as_if_all_trained() {
    // The frozen part has a skip within itself and one out of it.
    let model = |frozen: bool| {
        let down = |level: &'static str| {
            let make = Down::at(level);
            move |d: &Device| if frozen { make(d).no_grad() } else { make(d) }
        };
        let inner = Up::at("inner");
        let model =
            embed_frozen(frozen).push("outside", down("outer")).push("inside", down("inner"));
        model
            .push("up", move |d| if frozen { inner(d).no_grad() } else { inner(d) })
            .linear("between", DIM, DIM)
            .push("out", Up::at("outer"))
            .head()
    };
    let (_, parameters) = same_on_any_cut(|| classifier(model(true)), train_tokens);
    let before = parameter_bits(&mut on_one_stage(classifier(model(true))));
    let moved = parameters.iter().filter(|(path, bits)| before[*path] != **bits);
    assert_eq!(moved.count(), 6);
    let gradients = |frozen: bool| {
        let mut pipeline = on_one_stage(classifier(model(frozen)));
        let (x, y) = batch(7, 0);
        pipeline.gradients(x, y).expect("gradients").gradients
    };
    let (found, mut expected) = (gradients(true), gradients(false));
    expected.retain(|path, _| found.contains_key(path));
    assert_eq!(found.len(), 6);
    assert!(relative_difference(&found, &expected) < 1e-6);
}

fn embed_frozen(frozen: bool) -> Sequential<Tokens, Tensor<3>> {
    let make = move |d: &Device| {
        let embedding = EmbeddingConfig::new(CLASSES, DIM).init(d);
        if frozen { embedding.no_grad() } else { embedding }
    };
    Sequential::<Tokens>::new().push_module("embed", make, |m, ids| m.forward(ids))
}
