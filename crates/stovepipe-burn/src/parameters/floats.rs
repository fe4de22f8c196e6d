//! Finding the float parameters of a module without allocating them.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::parameters::path::track_path;

/// A parameter of floats.
pub(crate) struct FloatParameter {
    /// The path in the module.
    pub(crate) path: String,
    pub(crate) shape: Vec<usize>,
    /// The id that the module gave it; one parameter in several modules has one id.
    pub(crate) id: ParamId,
}

/// Finds the float parameters of a module, in the order in which the module visits them.
pub(crate) fn float_parameters<M: Module>(module: &M) -> Vec<FloatParameter> {
    let mut floats = Floats::default();
    module.visit(&mut floats);
    floats.found
}

#[derive(Default)]
struct Floats {
    path: Vec<String>,
    found: Vec<FloatParameter>,
}

impl ModuleVisitor for Floats {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (path, shape) = (self.path.join("."), param.lazy_shape().to_vec());
        self.found.push(FloatParameter { path, shape, id: param.id });
    }
}
