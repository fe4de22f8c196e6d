//! Values of other shapes than they are given as are refused, by name, instead of being broadcast
//! or cut along the wrong axis; where they mean something, it is the same for every number of
//! micro-batches.

use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::Tensor;
use stovepipe::prelude::*;
use stovepipe::recompute::Always;
use stovepipe::{Builder, LossSum, Pass, Profiling};
use stovepipe_testkit::{LinearLayers, floats};

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
