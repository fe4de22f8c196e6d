//! Layers are cut by parameters, number, work or given costs.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Linear, LinearConfig};
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;

/// Applies one matrix several times: its work doesn't follow the number of its parameters.
#[derive(Module, Debug)]
struct Repeated {
    linear: Linear,
    #[module(skip)]
    times: usize,
}

impl Repeated {
    fn new(times: usize) -> impl Fn(&Device) -> Self + Send + Sync + 'static {
        move |device| Self { linear: LinearConfig::new(4, 4).init(device), times }
    }
}

impl Layer for Repeated {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: &mut LayerContext<'_>) -> Tensor<2> {
        (0..self.times).fold(x, |x, _| self.linear.forward(x))
    }

    fn flops(&self) -> Option<f64> {
        Some((self.times * 2 * 4 * 4) as f64)
    }
}

fn sizes(costs: LayerCosts) -> Vec<usize> {
    let model = Sequential::<Tensor<2>>::new()
        .push("three", Repeated::new(3))
        .push_fn("scale", |x: Tensor<2>| x * 0.5)
        .push("one", Repeated::new(1))
        .push("another", Repeated::new(1))
        .push("last", Repeated::new(1));
    let pipeline =
        Pipeline::builder(model).backend(Flex::new()).stages(2).layer_costs(costs).build();
    pipeline.expect("a pipeline").partition().sizes()
}

#[test]
fn layers_are_cut_by_parameters_number_work_or_any_costs() {
    assert_eq!(sizes(LayerCosts::Parameters), [3, 2]);
    assert_eq!(sizes(LayerCosts::Uniform), [2, 3]);
    assert_eq!(sizes(LayerCosts::Flops), [1, 4]);
    assert_eq!(sizes(LayerCosts::Given(vec![1.0, 1.0, 1.0, 1.0, 9.0])), [4, 1]);
}
