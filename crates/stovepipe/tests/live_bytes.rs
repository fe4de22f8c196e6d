//! Memory is flat over calls of any kind: what a call needed is free when it returns.
//!
//! Live bytes are counted, so that the tests run one after the other, in a program of their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use peak_alloc::PeakAlloc;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, FloatDType, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::{Never, SqrtLayers};
use stovepipe::schedule::{GPipe, OneFOneB};
use stovepipe::{Builder, LossSum};
use stovepipe_testkit::{LinearLayers, floats};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The bytes that the program may allocate besides, such as names of threads and texts of failures.
const NOISE: usize = 100_000;

/// Lets one test run at a time, and keeps panics of workers from being printed.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    static SILENCED: Once = Once::new();
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    SILENCED.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if !thread.name().is_some_and(|name| name.starts_with("stovepipe-")) {
                show(panic);
            }
        }));
    });
    running
}

/// The live bytes that a number of calls add.
fn added(calls: usize, mut call: impl FnMut()) -> usize {
    let before = ALLOCATOR.current_usage();
    (0..calls).for_each(|_| call());
    ALLOCATOR.current_usage().saturating_sub(before)
}

/// Fails if `calls` calls add more live bytes, after a few that may fill caches.
#[track_caller]
fn is_flat(what: &str, calls: usize, mut call: impl FnMut()) {
    (0..3).for_each(|_| call());
    let added = added(calls, call);
    assert!(added < NOISE, "{what}: {added} bytes more after {calls} calls");
}

fn set_up<T>(
    builder: Builder<Tensor<2>, Tensor<2>, T>,
    stages: usize,
    micro_batches: usize,
) -> Builder<Tensor<2>, Tensor<2>, T> {
    builder
        .backend(Flex::new())
        .stages(stages)
        .micro_batches(micro_batches)
        .layer_costs(LayerCosts::Uniform)
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-3)
}

#[test]
fn evaluations_and_predictions_on_an_autodiff_device() {
    let _running = one_at_a_time();
    let device = Device::flex().autodiff();
    let model = Sequential::<Tensor<2>>::new()
        .linear("a", 4, 4)
        .push_module(
            "b",
            |device| LinearConfig::new(4, 4).init(device),
            |linear: &Linear, x: Tensor<2>| gelu(linear.forward(x)),
        )
        .push("side", |_| AddSide);
    let builder = Pipeline::builder(model).loss(MeanSquaredError);
    let mut pipeline = set_up(builder, 2, 4).build().expect("a pipeline");
    let values = || Tensor::<2>::ones([8, 4], &device);
    is_flat("predictions", 1000, || {
        pipeline.side_input("shift", values()).predict(values()).expect("a prediction");
    });
    is_flat("evaluations", 1000, || {
        pipeline.side_input("shift", values()).evaluate(values(), values()).expect("a loss");
    });
}

/// Adds a side input.
#[derive(Module, Debug)]
struct AddSide;

impl Layer for AddSide {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
        x + context.side_input::<Tensor<2>>("shift")
    }
}

#[test]
fn failed_steps() {
    let _running = one_at_a_time();
    let (x, y) = (floats([2048, 64]), floats([2048, 64]));
    for stages in [1, 2] {
        for recomputes in [false, true] {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let model = (0..8).fold(Sequential::<Tensor<2>>::new(), |model, layer| {
                model.push_module(
                    format!("layers.{layer}"),
                    |device| LinearConfig::new(64, 64).init(device),
                    |linear: &Linear, x: Tensor<2>| gelu(linear.forward(x)),
                )
            });
            let builder =
                Pipeline::builder(model).loss(move |output: Tensor<2>, target: Tensor<2>| {
                    let call = counted.fetch_add(1, Ordering::SeqCst);
                    assert_ne!(call, 3, "the loss fell over");
                    LossSum::of_terms((output - target).abs(), 1.0)
                });
            let builder = set_up(builder, stages, 4).schedule(GPipe::default());
            let builder = match recomputes {
                false => builder.checkpoint(Never),
                true => builder.checkpoint(SqrtLayers),
            };
            let mut pipeline = builder.build().expect("a pipeline");
            let mut step = |fails: bool| {
                calls.store(if fails { 0 } else { 4 }, Ordering::SeqCst);
                let outcome = pipeline.step(x.clone(), y.clone());
                assert_eq!(outcome.is_err(), fails, "{:?}", outcome.err());
            };
            (0..3).for_each(|_| step(false));
            let what = format!("{stages} stages, recomputes: {recomputes}");
            let one = added(1, || step(true));
            assert!(one < NOISE, "{what}: {one} bytes more after a failed step");
            is_flat(&format!("{what}, failed steps"), 5, || step(true));
            is_flat(&format!("{what}, failed and other steps"), 3, || {
                step(true);
                step(false);
            });
        }
    }
}

/// Two layers of which the second one's output goes nowhere.
#[derive(Module, Debug)]
struct Wasteful {
    used: Linear,
    unused: Linear,
    #[module(skip)]
    forwards: bool,
}

impl Wasteful {
    fn new(device: &Device, forwards: bool) -> Self {
        let linear = || LinearConfig::new(64, 64).init(device);
        Self { used: linear(), unused: linear(), forwards }
    }
}

impl Layer for Wasteful {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> (Tensor<2>, Tensor<2>) {
        let used = self.used.forward(x.clone());
        let unused = gelu(self.unused.forward(gelu(self.unused.forward(x))));
        if self.forwards { (used, unused) } else { (used.clone(), used) }
    }
}

/// A layer that depends on its parameters alone, and takes `x` for its shape.
#[derive(Module, Debug)]
struct Ignorant {
    linear: Linear,
}

impl Layer for Ignorant {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
        self.linear.forward(x.ones_like())
    }
}

#[test]
fn layers_whose_output_nobody_uses() {
    let _running = one_at_a_time();
    let (x, y) = (floats([512, 64]), floats([512, 64]));
    let first = |(used, _): (Tensor<2>, Tensor<2>)| used;
    type MakeModel<'a> = &'a dyn Fn() -> Sequential<Tensor<2>, Tensor<2>>;
    let models: [(&str, MakeModel<'_>); 3] = [
        ("inside a layer", &|| {
            let model = Sequential::new().push("a", |device| Wasteful::new(device, false));
            model.push_fn("first", first).linear("b", 64, 64)
        }),
        ("one of two outputs", &|| {
            let model = Sequential::new().push("a", |device| Wasteful::new(device, true));
            model.push_fn("first", first).linear("b", 64, 64)
        }),
        ("whole layers", &|| {
            Sequential::new()
                .linear("a", 64, 64)
                .linear("b", 64, 64)
                .push("c", |device| Ignorant { linear: LinearConfig::new(64, 64).init(device) })
        }),
    ];
    for (what, model) in models {
        for stages in [1, 2] {
            let schedules: [(&str, Box<dyn Schedule>); 2] =
                [("GPipe", Box::new(GPipe::default())), ("1F1B", Box::new(OneFOneB))];
            for (schedule, order) in schedules {
                let builder = Pipeline::builder(model()).loss(MeanSquaredError).schedule(order);
                let mut builder = set_up(builder, stages, 4);
                if stages == 1 {
                    // Tapes are recorded from copies of the parameters then.
                    builder = builder.compute_dtype(FloatDType::BF16);
                }
                let mut pipeline = builder.build().expect("a pipeline");
                let what = format!("{what}, {stages} stages, {schedule}");
                is_flat(&format!("{what}, steps"), 6, || {
                    pipeline.step(x.clone(), y.clone()).expect("a step");
                });
                is_flat(&format!("{what}, gradients"), 6, || {
                    pipeline.gradients(x.clone(), y.clone()).expect("gradients");
                });
                is_flat(&format!("{what}, accumulations"), 6, || {
                    pipeline.accumulate(x.clone(), y.clone()).expect("gradients");
                });
            }
        }
    }
}

#[test]
fn calls_of_all_kinds_in_turn() {
    let _running = one_at_a_time();
    let fails = Arc::new(AtomicUsize::new(0));
    let burnt = Arc::clone(&fails);
    let model = Sequential::<Tensor<2>>::new().linear("a", 8, 8).linear("b", 8, 8);
    let builder = Pipeline::builder(model).loss(move |output: Tensor<2>, target: Tensor<2>| {
        assert_eq!(burnt.load(Ordering::SeqCst), 0, "the loss fell over");
        LossSum::of_terms((output - target).powi_scalar(2), 1.0)
    });
    let mut pipeline = set_up(builder, 2, 3).build().expect("a pipeline");
    let (x, y) = (floats([6, 8]), floats([6, 8]));
    let mut round = || {
        pipeline.step(x.clone(), y.clone()).expect("a step");
        pipeline.evaluate(x.clone(), y.clone()).expect("a loss");
        pipeline.predict(x.clone()).expect("a prediction");
        fails.store(1, Ordering::SeqCst);
        pipeline.step(x.clone(), y.clone()).map(drop).expect_err("fails");
        fails.store(0, Ordering::SeqCst);
    };
    (0..20).for_each(|_| round());
    let added = added(2000, round);
    assert!(added < 4096, "{added} bytes more after 2,000 rounds than after 20");
}
