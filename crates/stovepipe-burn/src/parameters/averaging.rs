//! Turning sums of gradients into the optimizer's gradients: the mean over the mini-batch, and
//! clipping.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::value::dtype::{cast, widened};

/// A limit on gradients, applied to the mean over the mini-batch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Clipping {
    /// The largest norm of the whole gradient over all stages.
    ///
    /// Where the norm is larger, all gradients are multiplied by `limit / norm` (Pascanu et
    /// al., arXiv 1211.5063).
    Norm(f64),
    /// The largest absolute value of an element; larger ones are set to plus or minus this.
    Value(f64),
}

impl Clipping {
    /// Returns the limit.
    pub(crate) fn limit(self) -> f64 {
        match self {
            Self::Norm(limit) | Self::Value(limit) => limit,
        }
    }
}

/// The numbers by which a sum of gradients becomes the optimizer's gradient.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Averaging {
    /// The weight of the loss, by which sums are divided.
    pub(crate) weight: f64,
    /// The loss scale, by which sums are divided too.
    pub(crate) scale: f64,
    /// The factor that means are multiplied by, if they are.
    pub(crate) factor: Option<f64>,
    /// The largest absolute value of an element after that, if there is a limit.
    pub(crate) limit: Option<f64>,
}

impl Averaging {
    /// Makes an averaging that takes the mean alone.
    pub(crate) fn mean(weight: f64) -> Self {
        Self { weight, scale: 1.0, factor: None, limit: None }
    }

    /// Makes an averaging that also clips if that is asked for.
    ///
    /// `norm` is the norm of the mean gradient over all stages.
    pub(crate) fn clipped(weight: f64, clipping: Option<Clipping>, norm: Option<f64>) -> Self {
        let mean = Self::mean(weight);
        match (clipping, norm) {
            (Some(Clipping::Norm(limit)), Some(norm)) if norm > limit => {
                Self { factor: Some(limit / norm), ..mean }
            }
            (Some(Clipping::Value(limit)), _) => Self { limit: Some(limit), ..mean },
            _ => mean,
        }
    }

    fn apply<const D: usize>(&self, sum: Tensor<D>) -> Tensor<D> {
        // The divisor may be too large for 16 bits.
        widened(sum, |sum| {
            let mut gradient = sum.div_scalar(self.weight * self.scale);
            if let Some(factor) = self.factor {
                gradient = gradient.mul_scalar(factor);
            }
            match self.limit {
                Some(limit) => gradient.clamp(-limit, limit),
                None => gradient,
            }
        })
    }
}

/// Takes the sums of a module's gradients out and averages them.
pub(crate) fn average<M: Module>(
    module: &M,
    sums: &mut GradientsParams,
    averaging: Averaging,
) -> GradientsParams {
    let mut average = Average { sums, averaging, means: GradientsParams::new() };
    module.visit(&mut average);
    average.means
}

struct Average<'a> {
    sums: &'a mut GradientsParams,
    averaging: Averaging,
    means: GradientsParams,
}

impl ModuleVisitor for Average<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(sum) = self.sums.remove::<D>(param.id) {
            // A tied gradient's sum is kept in 32 bits until here.
            let mean = cast(self.averaging.apply(sum), param.val().dtype());
            self.means.register(param.id, mean);
        }
    }
}
