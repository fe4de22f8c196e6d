//! Replacing the value or the gradient of the parameter at a path.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, TensorData};

use crate::parameters::path::track_path;

/// Replaces the gradient of the parameter at a path.
pub(crate) fn write_gradient<M: Module>(
    module: &M,
    gradients: &mut GradientsParams,
    path: &str,
    values: &[f32],
) {
    module.visit(&mut WriteGradient { gradients, wanted: path, path: Vec::new(), values });
}

struct WriteGradient<'a> {
    gradients: &'a mut GradientsParams,
    wanted: &'a str,
    path: Vec<String>,
    values: &'a [f32],
}

impl ModuleVisitor for WriteGradient<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.join(".") == self.wanted {
            let value = param.val();
            let data = TensorData::new(self.values.to_vec(), value.shape());
            let device = value.device().inner();
            // It is still a sum, which may be too large for the parameter's own type.
            let gradient = Tensor::<D>::from_data(data, (&device, DType::F32));
            self.gradients.remove::<D>(param.id);
            self.gradients.register(param.id, gradient);
        }
    }
}

/// Replaces the value of the parameter at a path.
pub(crate) fn with_value<M: Module>(module: M, path: &str, value: &TensorData) -> M {
    module.map(&mut WriteValue { wanted: path, path: Vec::new(), value })
}

struct WriteValue<'a> {
    wanted: &'a str,
    path: Vec<String>,
    value: &'a TensorData,
}

impl ModuleMapper for WriteValue<'_> {
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
