//! Products with weights over all positions at once.

use burn::nn::Linear;
use burn::tensor::Tensor;

use crate::layer::context::LayerContext;

impl LayerContext<'_> {
    /// Runs a linear layer as one product over all positions. Shapes `[…, d_input]` and
    /// `[…, d_output]`.
    ///
    /// [`Linear::forward`] computes the same. But of a tensor with more than two axes it multiplies
    /// sample by sample where that is as good for the forward. Its backward then makes a gradient
    /// of the weight for each sample and adds them, which takes about twice as long.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::Linear;
    /// use burn::tensor::{Tensor, activation::gelu};
    /// use stovepipe_burn::{LayerContext, Layer};
    ///
    /// #[derive(Module, Debug)]
    /// struct FeedForward {
    ///     up: Linear,
    ///     down: Linear,
    /// }
    ///
    /// impl Layer for FeedForward {
    ///     type Input = Tensor<3>;
    ///     type Output = Tensor<3>;
    ///
    ///     fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
    ///         let hidden = gelu(context.linear(&self.up, x));
    ///         context.linear(&self.down, hidden)
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// If the last axis of `x` isn't as long as the layer's input.
    #[must_use]
    pub fn linear<const D: usize>(&self, linear: &Linear, x: Tensor<D>) -> Tensor<D> {
        if D <= 2 {
            return linear.forward(x);
        }
        let mut shape = x.dims();
        let positions = shape[..D - 1].iter().product::<usize>();
        let flat = x.reshape([positions, shape[D - 1]]);
        let y = linear.forward(flat);
        shape[D - 1] = y.dims()[1];
        y.reshape(shape)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Tolerance};

    use super::*;
    use crate::layer::context::{ForwardKey, Pass};

    #[test]
    fn it_computes_what_the_module_does() {
        let device = Device::flex();
        let context = LayerContext::new(Pass::Train, ForwardKey::default(), 0..2, "layer");
        for bias in [true, false] {
            let linear = LinearConfig::new(3, 5).with_bias(bias).init(&device);
            let x = Tensor::<1, burn::tensor::Int>::arange(0..24, &device).float() * 0.1;
            let same = |found: Tensor<1>, expected: Tensor<1>| {
                found
                    .into_data()
                    .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-6));
            };
            let (x4, x2) = (x.clone().reshape([2, 2, 2, 3]), x.reshape([8, 3]));
            let found = context.linear(&linear, x4.clone());
            assert_eq!(found.dims(), [2, 2, 2, 5]);
            same(found.reshape([40]), linear.forward(x4).reshape([40]));
            same(
                context.linear(&linear, x2.clone()).reshape([40]),
                linear.forward(x2).reshape([40]),
            );
        }
    }
}
