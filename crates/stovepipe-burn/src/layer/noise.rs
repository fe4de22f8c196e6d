//! The random numbers of a layer's forward: dropout, uniform and normal ones, keyed by sample.

use burn::tensor::{DType, Tensor};

use crate::error::shape::ShapeError;
use crate::layer::context::{LayerContext, Pass};
use crate::layer::sample_axis::SampleAxis;
use crate::value::dtype;

impl LayerContext<'_> {
    /// Sets elements of `x` to zero with this probability in training (Srivastava et al.,
    /// Journal of Machine Learning Research 15, 2014).
    ///
    /// The other elements are multiplied by `1 / (1 - probability)`. In evaluation `x` is
    /// returned as it is. `x` is of shape `[batch, …]`, which stays. For other shapes there is
    /// [`dropout_along`](Self::dropout_along).
    ///
    /// The choice of elements is a pure function of:
    ///
    /// - the pipeline's seed, the step and the layer's name
    /// - the number of draws before in the same forward
    /// - the number of the sample in the mini-batch, and that of the element in the sample
    ///
    /// So it is the same when the forward is recomputed, and for every number of stages and
    /// micro-batches. The step fails if the first axis doesn't hold the samples of the
    /// micro-batch.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::Linear;
    /// use burn::tensor::Tensor;
    /// use stovepipe_burn::{LayerContext, Layer};
    ///
    /// #[derive(Module, Debug)]
    /// struct Regularized {
    ///     linear: Linear,
    /// }
    ///
    /// impl Layer for Regularized {
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
    ///         let x = context.dropout(x, 0.1);
    ///         self.linear.forward(x)
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// If the probability isn't at least 0 and below 1.
    pub fn dropout<const D: usize>(&mut self, x: Tensor<D>, probability: f64) -> Tensor<D> {
        self.dropout_along(x, probability, SampleAxis::Batch(0))
    }

    /// Sets elements to zero as [`dropout`](Self::dropout) does, with the samples along this
    /// axis.
    ///
    /// The numbers are those of the tensor with this axis in front. So tokens get the same ones
    /// in `[batch, sequence, width]`, in `[sequence, batch, width]` and flattened:
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// use stovepipe_burn::{LayerContext, SampleAxis};
    ///
    /// fn of_tokens(x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
    ///     let shape = x.dims();
    ///     let [batch, sequence, width] = shape;
    ///     let flat = x.reshape([batch * sequence, width]);
    ///     context.dropout_along(flat, 0.1, SampleAxis::Flattened(0)).reshape(shape)
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// As [`dropout`](Self::dropout).
    pub fn dropout_along<const D: usize>(
        &mut self,
        x: Tensor<D>,
        probability: f64,
        axis: SampleAxis,
    ) -> Tensor<D> {
        assert!(
            (0.0..1.0).contains(&probability),
            "the probability of dropout is {probability}: give at least 0 and less than 1"
        );
        let draw = self.draw();
        let Some(shape) = self.in_front(x.dims(), axis) else { return x };
        if self.pass() == Pass::Evaluate || probability == 0.0 {
            return x;
        }
        let kept = 1.0 - probability;
        let device = x.device().inner();
        let mask = draw.mask(shape, &self.samples(), &device, kept, 1.0 / kept);
        let mask = typed_as(back_in_place(mask, axis), &x);
        x * mask
    }

    /// Draws uniform numbers of at least 0 and below 1, in the shape `[batch, …]` of `like`.
    ///
    /// They are keyed as those of [`dropout`](Self::dropout), in training and in evaluation.
    /// No gradient flows into them. The step fails if the first axis doesn't hold the samples:
    /// see [`uniform_along`](Self::uniform_along).
    pub fn uniform<const D: usize>(&mut self, like: &Tensor<D>) -> Tensor<D> {
        self.uniform_along(like, SampleAxis::Batch(0))
    }

    /// Draws numbers as [`uniform`](Self::uniform) does, with the samples along this axis.
    pub fn uniform_along<const D: usize>(
        &mut self,
        like: &Tensor<D>,
        axis: SampleAxis,
    ) -> Tensor<D> {
        // Rounded to 16 bits, the largest would become 1.
        let below_one = match like.dtype() {
            DType::BF16 => 1.0 - 1.0 / 256.0,
            DType::F16 => 1.0 - 1.0 / 2048.0,
            _ => 1.0,
        };
        let numbers = self.draw_uniform(like, axis);
        typed_as(if below_one < 1.0 { numbers.clamp_max(below_one) } else { numbers }, like)
    }

    /// Draws normal numbers of mean 0 and standard deviation 1, in the shape `[batch, …]` of
    /// `like`.
    ///
    /// They are made of two draws of uniform numbers, keyed as those of
    /// [`uniform`](Self::uniform), by the transform of Box and Muller (Annals of Mathematical
    /// Statistics 29, 1958). The step fails if the first axis doesn't hold the samples: see
    /// [`normal_along`](Self::normal_along).
    pub fn normal<const D: usize>(&mut self, like: &Tensor<D>) -> Tensor<D> {
        self.normal_along(like, SampleAxis::Batch(0))
    }

    /// Draws numbers as [`normal`](Self::normal) does, with the samples along this axis.
    pub fn normal_along<const D: usize>(
        &mut self,
        like: &Tensor<D>,
        axis: SampleAxis,
    ) -> Tensor<D> {
        // From above 0 to 1, so that the logarithm is finite.
        let radius = self.draw_uniform(like, axis).neg().add_scalar(1.0);
        let radius = radius.log().mul_scalar(-2.0).sqrt();
        let angle = self.draw_uniform(like, axis).mul_scalar(std::f64::consts::TAU);
        typed_as(radius * angle.cos(), like)
    }

    /// Draws uniform numbers in 32 bits and without autodiff.
    fn draw_uniform<const D: usize>(&mut self, like: &Tensor<D>, axis: SampleAxis) -> Tensor<D> {
        let draw = self.draw();
        let device = like.device().inner();
        match self.in_front(like.dims(), axis) {
            Some(shape) => back_in_place(draw.uniform(shape, &self.samples(), &device), axis),
            None => Tensor::zeros(like.dims(), &device),
        }
    }

    /// Returns the shape with the axis of the samples in front.
    ///
    /// Refuses a shape whose axis doesn't hold the samples of the micro-batch.
    fn in_front<const D: usize>(
        &mut self,
        shape: [usize; D],
        axis: SampleAxis,
    ) -> Option<[usize; D]> {
        let (number, samples) = (axis.number(), self.samples().len());
        if !shape.get(number).is_some_and(|length| axis.holds(*length, samples)) {
            self.refuse(ShapeError::SampleAxis {
                layer: self.layer().to_owned(),
                shape: shape.to_vec(),
                axis,
                samples,
            });
            return None;
        }
        let mut moved = shape;
        moved[..=number].rotate_right(1);
        Some(moved)
    }
}

/// Moves the axis of the samples from the front back to its place.
fn back_in_place<const D: usize>(numbers: Tensor<D>, axis: SampleAxis) -> Tensor<D> {
    if axis.number() == 0 {
        return numbers;
    }
    let mut axes = std::array::from_fn(|axis| axis as isize);
    axes[..=axis.number()].rotate_left(1);
    numbers.permute(axes)
}

/// Casts constants to the type of `like`, and turns autodiff on where `like` has it.
fn typed_as<const D: usize>(constants: Tensor<D>, like: &Tensor<D>) -> Tensor<D> {
    let constants = dtype::cast(constants, like.dtype());
    if like.device().is_autodiff() { Tensor::from_inner(constants) } else { constants }
}
