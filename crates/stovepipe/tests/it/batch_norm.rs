//! Batch normalization is the same however a model is split, and its running statistics are those
//! of whole mini-batches.

use stovepipe::BatchNorm;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{BatchNormConfig, Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::Always;
use stovepipe_testkit::{
    CLASSES, DIM, LinearLayers, SEQ, Tokens, batch, classifier, embed, floats, parameter_bits,
    same_on_any_cut,
};

/// Normalizes over batch and sequence, twice.
#[derive(Module, Debug)]
struct Normalized {
    linear: Linear,
    first: BatchNorm,
    second: BatchNorm,
}

impl Normalized {
    fn new(device: &Device) -> Self {
        let second = BatchNormConfig::new(DIM).with_momentum(0.3).init(device);
        Self {
            linear: LinearConfig::new(DIM, DIM).init(device),
            first: BatchNorm::new(DIM, device),
            second: second.into(),
        }
    }
}

impl Layer for Normalized {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let x = self.first.forward(x.swap_dims(1, 2), context);
        let x = self.linear.forward(x.swap_dims(1, 2));
        self.second.forward(x.swap_dims(1, 2), context).swap_dims(1, 2)
    }
}

fn with_batch_norm() -> Sequential<Tokens, Tensor<3>> {
    embed().push("first", Normalized::new).push("second", Normalized::new).head()
}

#[test]
fn batch_norm_is_the_same_however_it_is_split() {
    let builder = || classifier(with_batch_norm());
    // Evaluation shows the running statistics.
    same_on_any_cut(builder, |mut pipeline| {
        let losses = (0..3).map(|step| {
            let (x, y) = batch(7, step);
            let trained = pipeline.step(x.clone(), y.clone()).expect("a step").loss;
            pipeline.accumulate(x.clone(), y.clone()).expect("gradients");
            (trained, pipeline.evaluate(x, y).expect("evaluates").loss)
        });
        let losses: Vec<_> = losses.collect();
        // Neither looking nor failing moves the statistics: not even those of the stages before.
        let (x, y) = batch(7, 0);
        let mut shown = || pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss;
        let before = shown();
        assert_eq!(shown(), before);
        let targets = Tokens::full([7, SEQ], CLASSES as i32 + 3, &Device::flex());
        pipeline.step(x.clone(), targets).expect_err("no such class");
        pipeline.gradients(x.clone(), y.clone()).expect("gradients");
        assert_eq!(pipeline.evaluate(x, y).expect("evaluates").loss, before);
        (losses, parameter_bits(&mut pipeline))
    });
}

#[test]
fn batch_norm_takes_over_from_burns() {
    let device = Device::flex();
    let burns = BatchNormConfig::new(3).with_momentum(0.4).init(&device.clone().autodiff());
    let x = floats([5, 3]) * 3.0 + 2.0;
    burns.forward(Tensor::from_inner(x.clone()));
    let expected = burns.clone().valid().forward(x.clone());
    let ours = BatchNorm::from(burns);
    let [mean, _] = statistics(&ours);
    assert!(mean.into_iter().all(|mean| mean > 0.5));
    let model = Sequential::<Tensor<2>>::new().push("norm", move |_| Alone { norm: ours.clone() });
    let mut pipeline = Pipeline::builder(model).backend(Flex::new()).build().expect("builds");
    let found = pipeline.predict(x).expect("predicts");
    assert_eq!(found.into_data().as_bytes(), expected.into_data().as_bytes());
}

#[test]
fn a_frozen_batch_norm_stays_frozen() {
    let burns = BatchNormConfig::new(3).with_momentum(0.4).init(&Device::flex().autodiff());
    let x = floats([5, 3]) * 3.0 + 2.0;
    burns.forward(Tensor::from_inner(x.clone()));
    let kept = BatchNorm::from(burns.freeze());
    // In front of it something trains, so that it has a backward.
    let norm = kept.clone();
    let front = Sequential::<Tensor<2>>::new().linear("front", 3, 3);
    let model = front.push("norm", move |_| Alone { norm: norm.clone() }).linear("head", 3, 3);
    let mut pipeline = trained(model, 2);
    let before = statistics(&kept);
    let y = floats([5, 3]);
    let evaluated = pipeline.evaluate(x.clone(), y.clone()).expect("evaluates").loss;
    assert_eq!(pipeline.step(x, y).expect("a step").loss, evaluated);
    assert_eq!(statistics(&kept), before);
}

#[test]
fn running_statistics_are_those_of_the_whole_mini_batch() {
    // Kept to look at: clones share them.
    let kept = BatchNorm::new(3, &Device::flex().autodiff());
    let mut pipeline = alone(&kept, 3);
    let untouched = [vec![0.0; 3], vec![1.0; 3]];
    assert_eq!(statistics(&kept), untouched);
    // Far from zero, where a naive variance cancels.
    let x = floats([7, 3]) + 1000.0;
    pipeline.evaluate(x.clone(), x.clone()).expect("evaluates");
    pipeline.gradients(x.clone(), x.clone()).expect("gradients");
    pipeline.step(x.clone(), floats([7, 2])).expect_err("another width");
    assert_eq!(statistics(&kept), untouched);
    pipeline.step(x.clone(), x.clone()).expect("a step");
    let values: Vec<f64> = x.to_data().iter::<f64>().collect();
    let [mean, variance] = statistics(&kept);
    for feature in 0..3 {
        let column: Vec<f64> = values.iter().skip(feature).step_by(3).copied().collect();
        let expected = column.iter().sum::<f64>() / 7.0;
        let squares: f64 = column.iter().map(|v| (v - expected).powi(2)).sum();
        assert!((mean[feature] - 0.1 * expected).abs() < 1e-3, "{mean:?}");
        let unbiased = 0.9 + 0.1 * squares / 6.0;
        assert!((variance[feature] - unbiased).abs() < 1e-4, "{} {unbiased}", variance[feature]);
    }
}

#[derive(Module, Debug)]
struct Alone {
    norm: BatchNorm,
}

impl Layer for Alone {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
        self.norm.forward(x, context)
    }
}

/// Makes a model of a clone of the norm, which shares its statistics.
fn of_norm(norm: &BatchNorm) -> Sequential<Tensor<2>> {
    let norm = norm.clone();
    Sequential::<Tensor<2>>::new().push("norm", move |_| Alone { norm: norm.clone() })
}

/// Trains a clone of the norm.
fn alone(norm: &BatchNorm, micro_batches: usize) -> Pipeline<Tensor<2>, Tensor<2>, Tensor<2>> {
    trained(of_norm(norm), micro_batches)
}

fn trained(
    model: Sequential<Tensor<2>>,
    micro_batches: usize,
) -> Pipeline<Tensor<2>, Tensor<2>, Tensor<2>> {
    Pipeline::builder(model)
        .backend(Flex::new())
        .micro_batches(micro_batches)
        .checkpoint(Always)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(MeanSquaredError)
        .build()
        .expect("a pipeline")
}

/// Running mean and variance.
fn statistics(norm: &BatchNorm) -> [Vec<f64>; 2] {
    let (mean, variance) = norm.running_statistics();
    [mean, variance].map(|t| t.into_data().iter::<f64>().collect())
}

/// Uses one norm twice, and the other in some micro-batches only.
#[derive(Module, Debug)]
struct Moody {
    always: BatchNorm,
    sometimes: BatchNorm,
}

impl Layer for Moody {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
        let x = if context.micro_batch() == 1 {
            let wide = Tensor::cat(vec![x.clone(), x], 1);
            self.sometimes.forward(wide, context).narrow(1, 0, 3)
        } else {
            x
        };
        self.always.forward(x.clone() * 2.0, context) + self.always.forward(x, context)
    }
}

#[test]
fn running_statistics_are_told_apart_by_module() {
    let device = Device::flex().autodiff();
    let (always, sometimes) = (BatchNorm::new(3, &device), BatchNorm::new(6, &device));
    let kept = always.clone();
    let model = Sequential::<Tensor<2>>::new()
        .push("moody", move |_| Moody { always: always.clone(), sometimes: sometimes.clone() });
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .micro_batches(2)
        .optimizer(SgdConfig::new().init())
        .learning_rate(0.1)
        .loss(MeanSquaredError)
        .build()
        .expect("a pipeline");
    let x = Tensor::<2>::ones([4, 3], &Device::flex());
    pipeline.step(x.clone(), x).expect("a step");
    // Moved once, by the mean of 2, 1 of the first micro-batch and twice the normalized zeros of
    // the other.
    let [mean, _] = statistics(&kept);
    assert!((mean[0] - 0.1 * 0.75).abs() < 1e-6, "{mean:?}");
}
