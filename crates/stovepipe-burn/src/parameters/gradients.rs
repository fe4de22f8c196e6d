//! Arithmetic on a module's gradients: sums with those of earlier steps, and norms.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::parameters::path::track_path;
use crate::value::dtype::widen;

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
