//! Casting a module's parameters and gradients to another type of float.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::value::dtype::cast;

/// Casts the module's float parameters, which become leaves of their own under the same ids.
pub(crate) fn cast_parameters<M: Module>(module: M, dtype: FloatDType) -> M {
    module.map(&mut CastParameters(dtype))
}

struct CastParameters(FloatDType);

impl ModuleMapper for CastParameters {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let needs_gradient = value.is_require_grad();
        let value = Tensor::from_inner(cast(value.inner(), self.0));
        Param::from_mapped_value(id, value.set_require_grad(needs_gradient), mapper)
    }
}

/// Casts the gradients of a module's parameters to the types of the parameters.
pub(crate) fn cast_gradients<M: Module>(module: &M, gradients: GradientsParams) -> GradientsParams {
    let mut caster = CastGradients { gradients, cast: GradientsParams::new() };
    module.visit(&mut caster);
    caster.cast
}

struct CastGradients {
    gradients: GradientsParams,
    cast: GradientsParams,
}

impl ModuleVisitor for CastGradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.cast.register(param.id, cast(gradient, param.val().dtype()));
        }
    }
}

/// Returns the bytes that copies of a module's float parameters in another type take on the
/// device.
///
/// Parameters that have the type already aren't copied.
pub(crate) fn bytes_of_copies<M: Module>(module: &M, dtype: DType) -> u64 {
    let mut copies = Copies { dtype, bytes: 0 };
    module.visit(&mut copies);
    copies.bytes
}

struct Copies {
    dtype: DType,
    bytes: u64,
}

impl ModuleVisitor for Copies {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.dtype().is_float() && value.dtype() != self.dtype {
            self.bytes += (value.shape().num_elements() * self.dtype.size()) as u64;
        }
    }
}
