//! Replacing the value of the parameter at a path.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};

use crate::parameters::path::track_path;

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
