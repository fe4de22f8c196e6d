//! A layer, loss or optimizer that fails leaves everything as it was, says where it happened, and
//! leaves no thread behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::optim::{AdamConfig, ModuleOptimizer};
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::Always;
use stovepipe::schedule::{OneFOneB, ZbH1, ZbV};
use stovepipe::{BackendError, BuildError, Pass, TrainError};
use stovepipe_testkit::{LinearLayers, alone, floats, parameter_bits};

const SAMPLES: usize = 4;

/// Counts down with every call; at zero something goes wrong. Only a test that is alone in its
/// process lights it.
static FUSE: AtomicI64 = AtomicI64::new(i64::MAX);

/// Panics in the forward that burns the fuse down, or computes a wrong shape.
#[derive(Module, Debug)]
struct Fragile {
    linear: Linear,
    #[module(skip)]
    wrong_shape: bool,
}

impl Layer for Fragile {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
        let burnt = context.pass() != Pass::Evaluate && FUSE.fetch_sub(1, Ordering::SeqCst) == 0;
        let y = self.linear.forward(x);
        match (burnt, self.wrong_shape) {
            (false, _) => y,
            (true, true) => y.narrow(1, 0, 1),
            (true, false) => panic!("the layer fell over"),
        }
    }
}

fn pipeline(
    wrong_shape: bool,
    optimizer: ModuleOptimizer,
    staged: bool,
) -> Pipeline<Tensor<2>, Tensor<2>, Tensor<2>> {
    let linear = |device: &Device| LinearConfig::new(3, 3).init(device);
    let model = Sequential::<Tensor<2>>::new()
        .linear("before", 3, 3)
        .push("fragile", move |device| Fragile { linear: linear(device), wrong_shape })
        .linear("after", 3, 3);
    Pipeline::builder(model)
        .backend(Flex::new())
        .stages(3)
        .micro_batches(SAMPLES)
        .schedule(OneFOneB)
        .checkpoint(Always)
        .optimizer(optimizer)
        .learning_rate(1e-2)
        .loss(MeanSquaredError)
        .atomic_updates(staged)
        .build()
        .expect("a pipeline")
}

/// Threads of this process that a pipeline started.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| {
        let names =
            tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
        names.filter(|name| name.starts_with("stovepipe-")).count()
    })
}

/// The calls of the middle stage's forward in 1F1B on three ranks: whether it is a recomputation,
/// and of which micro-batch.
const CALLS: [(bool, usize); 2 * SAMPLES] =
    [(false, 0), (false, 1), (true, 0), (false, 2), (true, 1), (false, 3), (true, 2), (true, 3)];

#[test]
fn a_layer_that_panics_or_returns_a_wrong_shape() {
    alone("failures::a_layer_that_panics_or_returns_a_wrong_shape", || {
        let (x, y) = (floats([SAMPLES, 3]), floats([SAMPLES, 3]));
        for wrong_shape in [false, true] {
            for call in 0..CALLS.len() as i64 {
                let mut pipeline = pipeline(wrong_shape, AdamConfig::new().init(), false);
                pipeline.step(x.clone(), y.clone()).expect("a step");
                let before = parameter_bits(&mut pipeline);
                FUSE.store(call, Ordering::SeqCst);
                let error = pipeline.step(x.clone(), y.clone()).expect_err("fails").to_string();
                FUSE.store(i64::MAX, Ordering::SeqCst);
                let (is_recompute, micro_batch) = CALLS[call as usize];
                // A wrong shape shows where it is used: in the next stage, or in this one's
                // backward.
                let place = match (wrong_shape, is_recompute) {
                    (true, false) => format!("rank 2, stage 2, micro-batch {micro_batch}, forward"),
                    (true, true) => format!("rank 1, stage 1, micro-batch {micro_batch}, backward"),
                    (false, false) => {
                        format!("rank 1, stage 1, micro-batch {micro_batch}, forward")
                    }
                    (false, true) => {
                        format!("rank 1, stage 1, micro-batch {micro_batch}, recomputation")
                    }
                };
                assert!(error.contains(&place), "call {call}: {error}, not {place}");
                assert!(wrong_shape || error.contains("the layer fell over"), "{error}");
                assert!(parameter_bits(&mut pipeline) == before, "{error}");
                // The same pipeline goes on as one that never failed.
                pipeline.step(x.clone(), y.clone()).expect("a step");
                let mut untouched = self::pipeline(wrong_shape, AdamConfig::new().init(), false);
                for _ in 0..2 {
                    untouched.step(x.clone(), y.clone()).expect("a step");
                }
                assert!(parameter_bits(&mut pipeline) == parameter_bits(&mut untouched));
            }
        }
        assert_eq!(threads(), 0);
    });
}

#[test]
fn a_loss_that_panics_names_the_last_stage() {
    let model = Sequential::<Tensor<2>>::new().linear("a", 3, 3).linear("b", 3, 3);
    let calls = Arc::new(AtomicI64::new(0));
    let counted = Arc::clone(&calls);
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .stages(2)
        .micro_batches(SAMPLES)
        .optimizer(AdamConfig::new().init())
        .learning_rate(1e-2)
        .loss(move |output: Tensor<2>, target: Tensor<2>| {
            assert_ne!(counted.fetch_add(1, Ordering::SeqCst), 2, "the loss fell over");
            stovepipe::LossSum::new((output - target).abs().sum(), 1.0)
        })
        .build()
        .expect("a pipeline");
    let (x, y) = (floats([SAMPLES, 3]), floats([SAMPLES, 3]));
    let before = parameter_bits(&mut pipeline);
    let error = pipeline.step(x.clone(), y.clone()).expect_err("fails").to_string();
    assert!(
        error.contains("rank 1, stage 1, micro-batch 2, forward: the loss panicked"),
        "{error}"
    );
    assert!(parameter_bits(&mut pipeline) == before);
    pipeline.step(x, y).expect("a step");
}

/// Flex, but panics or fails at the end of the action that burns the fuse down, whichever it is.
struct FragileFlex {
    fuse: Arc<AtomicI64>,
    panics: bool,
}

impl Backend for FragileFlex {
    fn name(&self) -> &str {
        "fragile"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Flex::new().devices()
    }

    fn flush(&self, _: &Device) -> Result<(), BackendError> {
        if self.fuse.fetch_sub(1, Ordering::SeqCst) != 0 {
            return Ok(());
        }
        assert!(!self.panics, "the device fell over");
        Err(BackendError::failed("fragile", "the device is gone"))
    }
}

#[test]
fn any_action_may_fail_or_panic() {
    alone("failures::any_action_may_fail_or_panic", || {
        let (x, y) = (floats([SAMPLES, 3]), floats([SAMPLES, 3]));
        for panics in [false, true] {
            let fuse = Arc::new(AtomicI64::new(i64::MAX));
            let model = Sequential::<Tensor<2>>::new().linear("a", 3, 3).linear("b", 3, 3);
            let mut pipeline = Pipeline::builder(model)
                .backend(FragileFlex { fuse: Arc::clone(&fuse), panics })
                .stages(2)
                .micro_batches(SAMPLES)
                .checkpoint(Always)
                .optimizer(AdamConfig::new().init())
                .learning_rate(1e-2)
                .loss(MeanSquaredError)
                .build()
                .expect("a pipeline");
            let before = parameter_bits(&mut pipeline);
            let mut phases = std::collections::BTreeSet::new();
            // Two stages run each micro-batch forward, again, and backward.
            for action in 0..2 * 3 * SAMPLES as i64 {
                fuse.store(action, Ordering::SeqCst);
                let error = pipeline.step(x.clone(), y.clone()).expect_err("fails").to_string();
                fuse.store(i64::MAX, Ordering::SeqCst);
                let what = if panics { "the device fell over" } else { "the device is gone" };
                assert!(error.contains(what), "{error}");
                assert!(error.contains("rank ") && error.contains("micro-batch "), "{error}");
                let known = ["forward", "recomputation", "backward"];
                phases.extend(known.into_iter().filter(|p| error.contains(&format!(", {p}:"))));
                assert!(parameter_bits(&mut pipeline) == before, "{error}");
            }
            assert_eq!(phases.len(), 3, "{phases:?}");
            pipeline.step(x.clone(), y.clone()).expect("a step");
        }
        assert_eq!(threads(), 0);
    });
}

/// A call of a pipeline, of which only the failure counts.
type Call<'a> =
    &'a dyn Fn(&mut Pipeline<Tensor<2>, Tensor<2>, Tensor<2>>) -> Result<(), TrainError>;

#[test]
fn a_device_that_fails_where_nothing_changed_costs_one_step() {
    const SAMPLES: usize = 2;
    let (x, y) = (floats([SAMPLES, 3]), floats([SAMPLES, 3]));
    let calls: [(&str, Call<'_>); 3] = [
        ("gradients", &|p| p.gradients(x.clone(), y.clone()).map(drop)),
        ("accumulate", &|p| p.accumulate(x.clone(), y.clone()).map(drop)),
        ("step", &|p| p.step(x.clone(), y.clone()).map(drop)),
    ];
    for (name, call) in calls {
        let fuse = Arc::new(AtomicI64::new(i64::MAX));
        let model = Sequential::<Tensor<2>>::new().linear("a", 3, 3).linear("b", 3, 3);
        let mut pipeline = Pipeline::builder(model)
            .backend(FragileFlex { fuse: Arc::clone(&fuse), panics: false })
            .stages(2)
            .micro_batches(SAMPLES)
            .checkpoint(Always)
            .atomic_updates(true)
            .optimizer(AdamConfig::new().init())
            .learning_rate(1e-2)
            .loss(MeanSquaredError)
            .build()
            .expect("a pipeline");
        let before = parameter_bits(&mut pipeline);
        // Each flush in turn, until the fuse outlives the call.
        let mut failures = 0;
        loop {
            fuse.store(failures, Ordering::SeqCst);
            let outcome = call(&mut pipeline);
            if fuse.swap(i64::MAX, Ordering::SeqCst) >= 0 {
                outcome.expect("nothing failed");
                break;
            }
            let error = outcome.expect_err("fails").to_string();
            assert!(error.contains("the device is gone"), "{name}: {error}");
            assert!(parameter_bits(&mut pipeline) == before, "{name}: {error}");
            failures += 1;
        }
        // Two stages run each micro-batch forward, again, and backward, and make ready.
        assert_eq!(failures, 2 * (3 * SAMPLES as i64 + 1), "{name}");
        pipeline.step(x.clone(), y.clone()).expect("a step");
    }
}

/// An optimizer that panics on the parameter that burns its fuse down.
#[derive(Clone)]
struct FragileSgd {
    fuse: Arc<AtomicI64>,
}

impl burn::optim::Optimizer for FragileSgd {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        rate: burn::optim::LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        _: Option<()>,
    ) -> (Tensor<D>, Option<()>) {
        assert_ne!(self.fuse.fetch_sub(1, Ordering::SeqCst), 0, "the optimizer fell over");
        (tensor - gradient * rate, None)
    }

    fn to_device<const D: usize>(state: (), _: &Device) {
        state
    }
}

#[test]
fn a_failure_inside_the_update() {
    let (x, y) = (floats([SAMPLES, 3]), floats([SAMPLES, 3]));
    for staged in [true, false] {
        let fuse = Arc::new(AtomicI64::new(i64::MAX));
        let mut pipeline = pipeline(false, FragileSgd { fuse: Arc::clone(&fuse) }.into(), staged);
        fuse.store(4, Ordering::SeqCst);
        let before = parameter_bits(&mut pipeline);
        let error = pipeline.step(x.clone(), y.clone()).expect_err("fails").to_string();
        assert!(error.contains("the optimizer fell over"), "{error}");
        assert!(error.contains(": layer `") && error.contains("` panicked: "), "{error}");
        fuse.store(i64::MAX, Ordering::SeqCst);
        let again = pipeline.step(x.clone(), y.clone());
        if staged {
            assert!(error.contains("preparation of the update"), "{error}");
            assert!(again.is_ok());
            // The failed step left nothing behind: this is the first one.
            let mut untouched = self::pipeline(false, FragileSgd { fuse }.into(), true);
            assert!(parameter_bits(&mut untouched) == before);
            untouched.step(x.clone(), y.clone()).expect("a step");
            assert!(parameter_bits(&mut pipeline) == parameter_bits(&mut untouched));
        } else {
            let error = again.expect_err("refuses").to_string();
            assert!(error.contains("an earlier update failed half-way"), "{error}");
            // Some layers have no parameters left, others are a step ahead: none is handed out.
            let error = pipeline.parameters().expect_err("refuses").to_string();
            assert!(error.contains("an earlier update failed half-way"), "{error}");
        }
    }
}

#[test]
fn staged_updates_are_the_same_bits() {
    let (x, y) = (floats([SAMPLES, 3]), floats([SAMPLES, 3]));
    let run = |staged| {
        let mut pipeline = pipeline(false, AdamConfig::new().init(), staged);
        for _ in 0..3 {
            pipeline.step(x.clone(), y.clone()).expect("a step");
        }
        parameter_bits(&mut pipeline)
    };
    assert!(run(true) == run(false));
}

#[test]
fn bad_batches_are_refused_before_anything_runs() {
    let mut pipeline = pipeline(false, AdamConfig::new().init(), false);
    let device = Device::flex();
    let floats = |samples| Tensor::<2>::zeros([samples, 3], &device);
    let error = pipeline.step(floats(4), floats(3)).expect_err("refuses");
    assert!(matches!(error, TrainError::Samples { input: 4, target: 3 }), "{error}");
}

#[test]
fn incomplete_and_impossible_pipelines_are_refused_with_advice() {
    let model = || Sequential::<Tensor<2>>::new().linear("a", 3, 3).linear("b", 3, 3);
    let message = |result: Result<Pipeline<Tensor<2>, Tensor<2>, _>, BuildError>| {
        result.err().map(|error: BuildError| error.to_string()).unwrap_or_default()
    };
    type Target = stovepipe::NoLoss;
    let refused = |result: Result<Pipeline<Tensor<2>, Tensor<2>, Target>, BuildError>,
                   advice: &str| {
        let text = message(result);
        assert!(text.contains(advice), "{text}");
    };
    refused(Pipeline::builder(model()).build(), "call `.backend(…)`");
    refused(Pipeline::builder(model()).backend(Flex::new()).stages(0).build(), "give at least 1");
    refused(Pipeline::builder(model()).backend(Flex::new()).stages(3).build(), "3");
    refused(Pipeline::builder(model()).backend(Flex::new()).micro_batches(0).build(), "at least 1");
    refused(
        Pipeline::builder(model()).backend(Flex::new()).stages(2).stages_per_rank(2).build(),
        "one stage per rank",
    );
    refused(
        Pipeline::builder(model())
            .backend(Flex::new())
            .layer_costs(LayerCosts::Given(vec![1.0]))
            .build(),
        "give one for each",
    );
    refused(
        Pipeline::builder(model()).backend(Flex::new()).layer_costs(LayerCosts::Flops).build(),
        "layer `a` doesn't state its floating-point operations",
    );
    // Burn's autodiff has no halves of a backward.
    refused(
        Pipeline::builder(model()).backend(Flex::new()).stages(2).schedule(ZbH1).build(),
        "use one made of F and B",
    );
    refused(
        Pipeline::builder(model()).backend(Flex::new()).stages(2).schedule(ZbV).build(),
        "use one made of F and B",
    );
    let twice = model().push_fn("a", |x: Tensor<2>| x);
    refused(Pipeline::builder(twice).backend(Flex::new()).build(), "names must be unique");
    let shared = Sequential::<Tensor<2>>::new().push_module(
        "pair",
        |device| {
            let linear = LinearConfig::new(2, 2).init(device);
            vec![linear.clone(), linear]
        },
        |pair, x: Tensor<2>| pair[1].forward(pair[0].forward(x)),
    );
    refused(
        Pipeline::builder(shared).backend(Flex::new()).build(),
        "`pair.0.weight` and `pair.1.weight` are one parameter",
    );
    let linear = LinearConfig::new(2, 2).init(&Device::flex());
    let (first, second) = (linear.clone(), linear);
    let shared = || {
        let (first, second) = (first.clone(), second.clone());
        Sequential::<Tensor<2>>::new()
            .push_module("up", move |_| first.clone(), |m: &Linear, x: Tensor<2>| m.forward(x))
            .push_module("down", move |_| second.clone(), |m: &Linear, x: Tensor<2>| m.forward(x))
    };
    refused(
        Pipeline::builder(shared()).backend(Flex::new()).build(),
        "`up.weight` and `down.weight` are one parameter",
    );
    let tied = shared().tie(["up.weight", "down.weight"]).tie(["up.bias", "down.bias"]);
    assert!(Pipeline::builder(tied).backend(Flex::new()).build().is_ok());
    let no_optimizer =
        Pipeline::builder(model()).backend(Flex::new()).loss(MeanSquaredError).build();
    assert!(
        no_optimizer.err().is_some_and(|error| error.to_string().contains("call `.optimizer(…)`"))
    );
}
