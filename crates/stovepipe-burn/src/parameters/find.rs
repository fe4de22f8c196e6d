//! Finding the parameters of a module without allocating them.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};

use crate::parameters::path::track_path;

/// A parameter of floats.
#[derive(Debug, Clone)]
pub(crate) struct FloatParameter {
    /// The path in the module.
    pub(crate) path: String,
    pub(crate) shape: Vec<usize>,
    /// The id that the module gave it; one parameter in several modules has one id.
    pub(crate) id: ParamId,
    /// Says whether the module wants it trained: it isn't frozen, a buffer or quantized.
    pub(crate) is_trainable: bool,
}

/// The parameters of a module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// Those of floats, in the order in which the module visits them.
    pub(crate) floats: Vec<FloatParameter>,
    /// The paths in the module of all, in the order in which it visits them.
    pub(crate) paths: Vec<String>,
    /// Says whether one has its value already.
    pub(crate) are_initialized: bool,
}

/// Finds the parameters of a module.
pub(crate) fn find_parameters<M: Module>(module: &M) -> Found {
    let mut search = Search::default();
    module.visit(&mut search);
    search.found
}

#[derive(Default)]
struct Search {
    path: Vec<String>,
    found: Found,
}

impl ModuleVisitor for Search {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (path, shape) = (self.path.join("."), param.lazy_shape().to_vec());
        self.found.are_initialized |= param.is_initialized();
        let is_trainable = is_trainable(param);
        self.found.paths.push(path.clone());
        self.found.floats.push(FloatParameter { path, shape, id: param.id, is_trainable });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.found.are_initialized |= param.is_initialized();
        self.found.paths.push(self.path.join("."));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.found.are_initialized |= param.is_initialized();
        self.found.paths.push(self.path.join("."));
    }
}

/// Says whether a module wants this parameter trained, also if it was made on a device without
/// autodiff.
pub(crate) fn is_trainable<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    if param.is_initialized() {
        let value = param.base();
        if !value.dtype().is_float() || value.is_autodiff() {
            return value.is_require_grad();
        }
    }
    // Burn tells that of no parameter that isn't initialized, and initializing would allocate
    // it. But whoever loads a value gets a parameter that is treated alike.
    let loaded = Tensor::ones([1; D], &param.lazy_device());
    let stand_in = param.clone().load_mapper(|value| value).transform_for_load(loaded, param.id);
    stand_in.train().is_require_grad()
}

#[cfg(test)]
mod tests {
    use burn::module::Lora;
    use burn::nn::{BatchNormConfig, Linear, LinearConfig, LinearLayout};
    use burn::tensor::Device;

    use super::*;

    fn trainable<M: Module>(module: &M) -> Vec<String> {
        let floats = find_parameters(module).floats.into_iter();
        floats.filter(|float| float.is_trainable).map(|float| float.path).collect()
    }

    fn linear(device: &Device) -> Linear {
        LinearConfig::new(2, 3).init(device)
    }

    #[test]
    fn what_trains_is_known_without_initializing() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let module = linear(&device);
            assert_eq!(trainable(&module), ["weight", "bias"]);
            assert!(!module.weight.is_initialized());
            let frozen = module.no_grad();
            assert!(trainable(&frozen).is_empty());
            assert!(!frozen.weight.is_initialized() && !find_parameters(&frozen).are_initialized);
            let column = LinearConfig::new(2, 3).with_layout(LinearLayout::Col).init(&device);
            assert_eq!(trainable(&column), ["weight", "bias"]);
        }
    }

    #[test]
    fn adapters_train_and_what_they_adapt_does_not() {
        let adapted = linear(&Device::flex()).apply_lora(Lora::new(1, 1.0));
        assert_eq!(trainable(&adapted), ["weight.lora.a", "weight.lora.b"]);
        assert_eq!(
            find_parameters(&adapted).paths,
            ["weight", "weight.lora.a", "weight.lora.b", "bias"]
        );
        assert_eq!(trainable(&adapted.valid()), ["weight.lora.a", "weight.lora.b"]);
    }

    #[test]
    fn buffers_do_not_train() {
        let norm = BatchNormConfig::new(2).init(&Device::flex());
        assert_eq!(trainable(&norm), ["gamma", "beta"]);
    }
}
