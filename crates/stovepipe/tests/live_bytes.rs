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
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::{Never, SqrtLayers};
use stovepipe::schedule::GPipe;
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
