//! Work on a module's gradients: sums with accumulated gradients, norms, and the finding of
//! those that are missing.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::parameters::path::track_path;
use crate::value::dtype::widen;
use crate::value::sum::partial_sums;

/// Computes `factor * earlier + later` for the gradients of a module's parameters.
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
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return,
        };
        self.sums.register(param.id, sum);
    }
}

/// Returns the sum of the squares of a module's gradients, except those at some paths.
///
/// Sums over a parameter, or over the rows of a large one, are read from the device and added in
/// 64 bits.
pub(crate) fn squared_norm<M: Module>(
    module: &M,
    gradients: &GradientsParams,
    except: &HashSet<String>,
) -> f64 {
    let (path, sums) = (Vec::new(), Vec::new());
    let mut norm = SquaredNorm { gradients, except, path, sums };
    module.visit(&mut norm);
    // All are queued before the first is read.
    norm.sums.into_iter().map(|sum| sum.into_data().iter::<f64>().sum::<f64>()).sum()
}

struct SquaredNorm<'a> {
    gradients: &'a GradientsParams,
    except: &'a HashSet<String>,
    path: Vec<String>,
    /// The sums of the squares of each parameter, in pieces.
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for SquaredNorm<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.except.is_empty() && self.except.contains(&self.path.join(".")) {
            return;
        }
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            let (rows, rest) = partial_sums(widen(gradient).powi_scalar(2));
            self.sums.extend(std::iter::once(rows).chain(rest));
        }
    }
}

/// Returns the paths of a module's parameters that are to be trained and have no gradient.
pub(crate) fn paths_without<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<String> {
    let mut without = Without { gradients, path: Vec::new(), found: Vec::new() };
    module.visit(&mut without);
    without.found
}

struct Without<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    found: Vec<String>,
}

impl ModuleVisitor for Without<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() && self.gradients.get::<D>(param.id).is_none() {
            self.found.push(self.path.join("."));
        }
    }
}
