//! A module's parameters and gradients in another type of float.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::value::dtype::cast;

/// The module with its parameters cast, leaves of their own under the same ids.
pub(crate) fn cast_parameters<M: Module>(module: M, dtype: FloatDType) -> M {
    module.map(&mut Cast(dtype))
}

struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let needs_gradient = value.is_require_grad();
        let value = Tensor::from_inner(cast(value.inner(), self.0));
        Param::from_mapped_value(id, value.set_require_grad(needs_gradient), mapper)
    }
}

/// The gradients of a module's parameters in their own types.
pub(crate) fn cast_gradients<M: Module>(module: &M, gradients: GradientsParams) -> GradientsParams {
    let mut back = CastBack { gradients, cast: GradientsParams::new() };
    module.visit(&mut back);
    back.cast
}

struct CastBack {
    gradients: GradientsParams,
    cast: GradientsParams,
}

impl ModuleVisitor for CastBack {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.cast.register(param.id, cast(gradient, param.val().dtype()));
        }
    }
}

/// What a module's float parameters take on the device once more in another type. Those that have it already
/// aren't copied.
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
