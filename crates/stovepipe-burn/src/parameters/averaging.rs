//! From sums of gradients to what the optimizer gets: the mean over the mini-batch, and clipping.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::value::dtype::{cast, widened};

/// How gradients are kept from growing too large.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Clipping {
    /// Scales all gradients by one factor, so that the norm of the whole gradient over all stages is at
    /// most this: `max / norm` where the norm is larger (Pascanu et al., arXiv 1211.5063).
    Norm(f64),
    /// Limits every element to plus or minus this.
    Value(f64),
}

impl Clipping {
    /// The limit.
    pub(crate) fn limit(self) -> f64 {
        match self {
            Self::Norm(limit) | Self::Value(limit) => limit,
        }
    }
}

/// From sums of gradients to what the optimizer gets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Averaging {
    /// What the sums are divided by.
    pub(crate) weight: f64,
    /// And what the loss was multiplied by.
    pub(crate) scale: f64,
    /// What the means are multiplied by, if by anything.
    pub(crate) factor: Option<f64>,
    /// Between what and minus what they are kept then.
    pub(crate) limit: Option<f64>,
}

impl Averaging {
    /// The mean alone.
    pub(crate) fn mean(weight: f64) -> Self {
        Self { weight, scale: 1.0, factor: None, limit: None }
    }

    /// Clipped, if asked for; `norm` is that of the mean gradient.
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

    fn of<const D: usize>(&self, sum: Tensor<D>) -> Tensor<D> {
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

/// Takes the sums of a module's parameters and averages them.
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
            let mean = cast(self.averaging.of(sum), param.val().dtype());
            self.means.register(param.id, mean);
        }
    }
}
