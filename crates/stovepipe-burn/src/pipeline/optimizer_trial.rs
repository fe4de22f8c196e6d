//! The trial of an optimizer on tiny tensors in the place of parameters: whether it can update
//! each, and what it makes of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, TensorData};

use crate::error::build::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};
use crate::model::paths::path_in_model;
use crate::parameters::find::FloatParameter;
use crate::parameters::initialize::id_of;
use crate::parameters::named::delegate_module;

/// The gradients of a trial that shows what an optimizer does: the first shows decay, the next
/// momentum.
const GRADIENTS: [f32; 3] = [0.0, 1.0, 0.25];

/// The parameters that are to be trained: each one's path in the model, and itself.
fn trained<'a>(
    layers: &'a [LayerSpec],
    layer_facts: &'a [LayerFacts],
) -> impl Iterator<Item = (String, &'a FloatParameter)> {
    layers.iter().zip(layer_facts).flat_map(|(layer, facts)| {
        let trained = facts.floats.iter().filter(|float| float.is_trainable);
        trained.map(|float| (path_in_model(&layer.name, &float.path), float))
    })
}

/// Returns the paths in the model of the parameters that are to be trained.
pub(crate) fn trained_paths(layers: &[LayerSpec], layer_facts: &[LayerFacts]) -> Vec<String> {
    trained(layers, layer_facts).map(|(path, _)| path).collect()
}

/// Refuses an optimizer that can't update a parameter, such as Muon, which is for matrices.
pub(crate) fn check_optimizer(
    optimizer: &ModuleOptimizer,
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Result<(), BuildError> {
    for (parameter, float) in trained(layers, layer_facts) {
        let tried = catch_unwind(AssertUnwindSafe(|| {
            updated(optimizer, &parameter, &float.shape, &GRADIENTS[..1]);
        }));
        if let Err(panic) = tried {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let reason = text.unwrap_or("it panicked").to_owned();
            return Err(BuildError::Optimizer { parameter, shape: float.shape.clone(), reason });
        }
    }
    Ok(())
}

/// Describes what an optimizer does to each parameter.
///
/// Burn tells neither the kind of an optimizer nor its settings, but both show in its updates.
/// The numbers are rounded, as processors may differ in the last digits.
pub(crate) fn describe_optimizer(
    optimizer: &ModuleOptimizer,
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Vec<String> {
    let describe = |(path, float): (String, &FloatParameter)| {
        let moves = updated(optimizer, &path, &float.shape, &GRADIENTS);
        let moves: Vec<String> = moves.iter().map(|by| format!("{by:.3e}")).collect();
        format!("{path} {}", moves.join(" "))
    };
    trained(layers, layer_facts).map(describe).collect()
}

/// Updates a tiny tensor of a parameter's rank, once with each of these gradients. Returns how
/// far each of its elements has moved after each.
///
/// Returns none for a rank that optimizers don't know.
fn updated(
    optimizer: &ModuleOptimizer,
    path: &str,
    shape: &[usize],
    gradients: &[f32],
) -> Vec<f32> {
    macro_rules! dispatch {
        ($($rank:literal)*) => {
            match shape.len() {
                $($rank => updated_of_rank::<$rank>(optimizer, path, shape, gradients),)*
                _ => Vec::new(),
            }
        };
    }
    dispatch!(1 2 3 4 5 6 7 8)
}

fn updated_of_rank<const D: usize>(
    optimizer: &ModuleOptimizer,
    path: &str,
    shape: &[usize],
    gradients: &[f32],
) -> Vec<f32> {
    let dims: [usize; D] = std::array::from_fn(|axis| shape[axis].min(2));
    let (host, count) = (Device::flex(), dims.iter().product());
    let numbers = |pair: [f32; 2]| -> Vec<f32> { pair.into_iter().cycle().take(count).collect() };
    let tensor = |pair| Tensor::<D>::from_data(TensorData::new(numbers(pair), dims), &host);
    // A large element shows a small decay.
    let start = [1000.0, 1.0];
    let param = Param::initialized(id_of(path), Tensor::from_inner(tensor(start)).require_grad());
    let mut single = Single { path: path.to_owned(), param };
    let mut optimizer = optimizer.clone();
    let mut moved = Vec::new();
    for gradient in gradients {
        let mut of_step = GradientsParams::new();
        of_step.register(single.param.id, tensor([*gradient, -0.5 * gradient]));
        single = optimizer.step(1.0, single, of_step);
        let values = single.param.val().inner().into_data();
        moved.extend(values.iter::<f32>().zip(numbers(start)).map(|(value, start)| value - start));
    }
    moved
}

/// A module with one parameter, whose path is given.
#[derive(Clone, Debug)]
struct Single<const D: usize> {
    path: String,
    param: Param<Tensor<D>>,
}

impl<const D: usize> Module for Single<D> {
    delegate_module!(param);

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.enter_module(&self.path, "Single");
        self.param.visit(visitor);
        visitor.exit_module(&self.path, "Single");
    }

    fn map<T: ModuleMapper>(self, mapper: &mut T) -> Self {
        mapper.enter_module(&self.path, "Single");
        let param = Module::map(self.param, mapper);
        mapper.exit_module(&self.path, "Single");
        Self { param, ..self }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::ParamGroup;
    use burn::optim::decay::WeightDecayConfig;
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{AdamConfig, AdamWConfig, MuonConfig, SgdConfig};

    use super::*;

    fn tried(optimizer: &ModuleOptimizer) -> Vec<String> {
        let moves = updated(optimizer, "a.weight", &[7, 5], &GRADIENTS);
        moves.iter().map(|by| format!("{by:.3e}")).collect()
    }

    #[test]
    fn optimizers_are_told_apart_by_what_they_do() {
        let decay = |penalty| Some(WeightDecayConfig::new(penalty));
        let momentum = |momentum| Some(MomentumConfig::new().with_momentum(momentum));
        let group = |by: SgdConfig| {
            SgdConfig::new().init().with_group(ParamGroup::from_predicate("a."), by.build(), None)
        };
        let optimizers: Vec<ModuleOptimizer> = vec![
            SgdConfig::new().init(),
            SgdConfig::new().with_weight_decay(decay(1e-5)).init(),
            SgdConfig::new().with_weight_decay(decay(1e-4)).init(),
            SgdConfig::new().with_momentum(momentum(0.9)).init(),
            SgdConfig::new().with_momentum(momentum(0.8)).init(),
            group(SgdConfig::new().with_weight_decay(decay(1e-2))),
            AdamConfig::new().init(),
            AdamConfig::new().with_beta_2(0.99).init(),
            AdamConfig::new().with_weight_decay(decay(1e-3)).init(),
            AdamConfig::new().with_weight_decay(decay(1e-2)).init(),
            AdamWConfig::new().init(),
            AdamWConfig::new().with_weight_decay(1e-3).init(),
            MuonConfig::new().init(),
        ];
        for (index, optimizer) in optimizers.iter().enumerate() {
            assert_eq!(tried(optimizer), tried(optimizer));
            for (other_index, other) in optimizers.iter().enumerate().skip(index + 1) {
                assert_ne!(tried(optimizer), tried(other), "{index} and {other_index}");
            }
        }
        // The group is for other parameters.
        let elsewhere = SgdConfig::new().with_weight_decay(decay(1e-2)).build();
        let optimizer = SgdConfig::new().init();
        let optimizer = optimizer.with_group(ParamGroup::from_predicate("b."), elsewhere, None);
        assert_eq!(tried(&optimizer), tried(&optimizers[0]));
    }
}
