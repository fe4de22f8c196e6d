//! Fresh leaves of parameters for each forward.
//!
//! Burn keeps everything recorded from one leaf in one graph, which every backward walks, and frees
//! abandoned operations only once nothing holds a tensor of their graph. With leaves of its own a
//! forward's tape is a graph of its own, and goes when the tape goes.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

/// Makes new leaves of a module's float parameters, with their values and ids.
pub(crate) fn fresh_leaves<M: Module>(module: M) -> M {
    module.map(&mut FreshLeaves)
}

struct FreshLeaves;

impl ModuleMapper for FreshLeaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let needs_gradient = value.is_require_grad();
        let value = Tensor::from_inner(value.inner()).set_require_grad(needs_gradient);
        Param::from_mapped_value(id, value, mapper)
    }
}
