//! Fresh leaves for parameters, so that Burn can forget what it recorded from the old ones.
//!
//! Burn frees abandoned operations only once nothing holds a tensor of their graph. A module
//! holds its parameters, so what was recorded from them without a backward would stay.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Makes leaves of their own of the parameters that have no gradient among these.
///
/// Values and ids stay. Returns whether there was such a parameter.
pub(crate) fn renew_leaves<M: Module>(module: M, gradients: &GradientsParams) -> (M, bool) {
    let mut renew = RenewLeaves { gradients, renewed: false };
    let module = module.map(&mut renew);
    (module, renew.renewed)
}

struct RenewLeaves<'a> {
    gradients: &'a GradientsParams,
    renewed: bool,
}

impl ModuleMapper for RenewLeaves<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.gradients.get::<D>(param.id).is_some() {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let value = if value.is_require_grad() {
            self.renewed = true;
            Tensor::from_inner(value.inner()).require_grad()
        } else {
            value
        };
        Param::from_mapped_value(id, value, mapper)
    }
}
