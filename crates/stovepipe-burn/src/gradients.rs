//! What is done with accumulated gradients before an update: the mean over the mini-batch, and clipping.

use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, TensorData};

use crate::cell::track_path;
use crate::precision::{cast, widen, widened};

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

/// Adds one module's gradients to others, which are multiplied by a factor, in the order `earlier + later`.
pub(crate) fn add<M: Module>(
    module: &M,
    (earlier, factor): (&GradientsParams, f64),
    later: GradientsParams,
) -> GradientsParams {
    let mut add = Add { earlier, factor, later, sums: GradientsParams::new() };
    module.visit(&mut add);
    add.sums
}

struct Add<'a> {
    earlier: &'a GradientsParams,
    factor: f64,
    later: GradientsParams,
    sums: GradientsParams,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let earlier = self.earlier.get::<D>(param.id).map(|earlier| match self.factor {
            1.0 => earlier,
            factor => earlier.mul_scalar(factor),
        });
        let sum = match (earlier, self.later.remove::<D>(param.id)) {
            (Some(earlier), Some(later)) => earlier + later,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return,
        };
        self.sums.register(param.id, sum);
    }
}

/// The sum of the squares of a module's gradients but for those at some paths, added parameter by
/// parameter in 64 bits. Reads from the device.
pub(crate) fn squared_norm<M: Module>(
    module: &M,
    gradients: &GradientsParams,
    but: &HashSet<String>,
) -> f64 {
    let (path, parts) = (Vec::new(), Vec::new());
    let mut norm = SquaredNorm { gradients, but, path, parts };
    module.visit(&mut norm);
    // All are queued before the first is read.
    norm.parts.into_iter().map(|part| part.into_data().iter::<f64>().sum::<f64>()).sum()
}

struct SquaredNorm<'a> {
    gradients: &'a GradientsParams,
    but: &'a HashSet<String>,
    path: Vec<String>,
    parts: Vec<Tensor<1>>,
}

impl ModuleVisitor for SquaredNorm<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.but.is_empty() && self.but.contains(&self.path.join(".")) {
            return;
        }
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            self.parts.push(widen(gradient).powi_scalar(2).sum());
        }
    }
}

/// The gradient of the parameter at a path, copied to the host.
pub(crate) fn read<M: Module>(
    module: &M,
    gradients: &GradientsParams,
    path: &str,
) -> Option<Vec<f32>> {
    let mut read = Read { gradients, wanted: path, path: Vec::new(), found: None };
    module.visit(&mut read);
    read.found
}

struct Read<'a> {
    gradients: &'a GradientsParams,
    wanted: &'a str,
    path: Vec<String>,
    found: Option<Vec<f32>>,
}

impl ModuleVisitor for Read<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.join(".") == self.wanted {
            let gradient = self.gradients.get::<D>(param.id);
            self.found = gradient.map(|gradient| gradient.into_data().iter::<f32>().collect());
        }
    }
}

/// Puts a gradient in the place of that of the parameter at a path.
pub(crate) fn write<M: Module>(
    module: &M,
    gradients: &mut GradientsParams,
    path: &str,
    values: &[f32],
) {
    module.visit(&mut Write { gradients, wanted: path, path: Vec::new(), values });
}

struct Write<'a> {
    gradients: &'a mut GradientsParams,
    wanted: &'a str,
    path: Vec<String>,
    values: &'a [f32],
}

impl ModuleVisitor for Write<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.join(".") == self.wanted {
            let value = param.val();
            let data = TensorData::new(self.values.to_vec(), value.shape());
            let device = value.device().inner();
            // Still a sum, which the parameter's own type may not hold.
            let gradient = Tensor::<D>::from_data(data, (&device, DType::F32));
            self.gradients.remove::<D>(param.id);
            self.gradients.register(param.id, gradient);
        }
    }
}

/// A module whose parameter at a path has this value.
pub(crate) fn with_value<M: Module>(module: M, path: &str, value: &TensorData) -> M {
    module.map(&mut Replace { wanted: path, path: Vec::new(), value })
}

struct Replace<'a> {
    wanted: &'a str,
    path: Vec<String>,
    value: &'a TensorData,
}

impl ModuleMapper for Replace<'_> {
    track_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.path.join(".") != self.wanted {
            return param;
        }
        let (id, old, mapper) = param.consume();
        let options = (&old.device().inner(), old.dtype());
        let new = Tensor::<D>::from_data(self.value.clone(), options);
        let new = Tensor::from_inner(new).set_require_grad(old.is_require_grad());
        Param::from_mapped_value(id, new, mapper)
    }
}
