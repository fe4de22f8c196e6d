//! Work on a module's gradients: sums with accumulated gradients, norms, and the finding of
//! those that are missing.

use std::any::Any;
use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::parameters::path::track_path;
use crate::value::dtype::widen;
use crate::value::part::Part;
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

/// Returns the gradient of the parameter at a path, if there is one. It is cast to 32 bits, so that
/// sums of several fit in.
pub(crate) fn gradient_at<M: Module>(
    module: &M,
    gradients: &GradientsParams,
    path: &str,
) -> Option<Box<dyn Part>> {
    let mut search = GradientAt { gradients, wanted: path, path: Vec::new(), found: None };
    module.visit(&mut search);
    search.found
}

struct GradientAt<'a> {
    gradients: &'a GradientsParams,
    wanted: &'a str,
    path: Vec<String>,
    found: Option<Box<dyn Part>>,
}

impl ModuleVisitor for GradientAt<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.join(".") == self.wanted {
            let gradient = self.gradients.get::<D>(param.id);
            self.found = gradient.map(|gradient| Box::new(widen(gradient)) as Box<dyn Part>);
        }
    }
}

/// Replaces the gradient of the parameter at a path.
pub(crate) fn set_gradient_at<M: Module>(
    module: &M,
    gradients: &mut GradientsParams,
    path: &str,
    gradient: Box<dyn Part>,
) {
    let gradient = Some(gradient.into_any());
    module.visit(&mut SetGradientAt { gradients, wanted: path, path: Vec::new(), gradient });
}

struct SetGradientAt<'a> {
    gradients: &'a mut GradientsParams,
    wanted: &'a str,
    path: Vec<String>,
    gradient: Option<Box<dyn Any>>,
}

impl ModuleVisitor for SetGradientAt<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.join(".") == self.wanted
            && let Some(Ok(gradient)) = self.gradient.take().map(|g| g.downcast::<Tensor<D>>())
        {
            self.gradients.remove::<D>(param.id);
            self.gradients.register(param.id, *gradient);
        }
    }
}

/// Returns the path of the first parameter of a module whose gradient isn't finite.
///
/// Reads each gradient from the device.
pub(crate) fn path_of_not_finite<M: Module>(
    module: &M,
    gradients: &GradientsParams,
) -> Option<String> {
    let mut search = NotFinite { gradients, path: Vec::new(), found: None };
    module.visit(&mut search);
    search.found
}

struct NotFinite<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    found: Option<String>,
}

impl ModuleVisitor for NotFinite<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.get::<D>(param.id).filter(|_| self.found.is_none());
        if gradient.is_some_and(|gradient| !Part::is_finite(&gradient)) {
            self.found = Some(self.path.join("."));
        }
    }
}

/// Returns sums of the squares of a module's gradients, except those at some paths.
///
/// They are sums over a parameter, or over the rows of a large one, still on the device.
pub(crate) fn squares<M: Module>(
    module: &M,
    gradients: &GradientsParams,
    except: &HashSet<String>,
) -> Vec<Tensor<1>> {
    let mut squares = Squares { gradients, except, path: Vec::new(), sums: Vec::new() };
    module.visit(&mut squares);
    squares.sums
}

struct Squares<'a> {
    gradients: &'a GradientsParams,
    except: &'a HashSet<String>,
    path: Vec<String>,
    /// The sums of the squares of each parameter, in pieces.
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
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
