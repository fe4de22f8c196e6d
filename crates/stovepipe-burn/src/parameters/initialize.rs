//! Initializing parameters on the host, layer by layer.
//!
//! A layer's seed is made of the run's seed and the layer's name, and ids are made of the
//! parameters' paths. So they don't depend on the number of stages, the backend, the process,
//! or other threads.
//!
//! Another thread of the program may draw from Burn's generator while a layer is made. That shows
//! when it is made once more: so a layer that draws is made at least twice, one that doesn't
//! once.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::hash::stable_hash;
use crate::parameters::find::is_trainable;
use crate::parameters::generator::{for_one_layer, place_of};
use crate::parameters::path::track_path;
use crate::parameters::read::read_parameters;

/// The number of times that a module is made again, while other threads draw, before its values
/// are taken as they are.
const ATTEMPTS: usize = 100;

/// The number of times in a row that a module may draw equally much and still get other values.
///
/// Another thread hardly draws equally much so often. So the module has another source of random
/// numbers, which never gives the same twice.
const OTHER_VALUES: usize = 10;

/// Makes a module on the host to look at it.
///
/// Also says whether it drew no random numbers for that.
pub(crate) fn look_at<M>(make: impl FnOnce(&Device) -> M) -> (M, bool) {
    let host = Device::flex();
    let _alone = for_one_layer();
    let start = start_of(0, &host);
    let module = make(&host.clone().autodiff());
    let has_drawn = place_of(&host) != start;
    (module, !has_drawn)
}

/// Makes a module on the host, moves it to `device` with gradients on, and names its
/// parameters. The first time, `made` is taken if it is there.
///
/// What the module says of its parameters stays: which are trained, frozen, quantized or
/// adapted. On whatever device it was made, those that are to be trained can be.
pub(crate) fn initialize<M: Module>(
    seed: u64,
    name: &str,
    device: &Device,
    made: Option<M>,
    make: impl Fn(&Device) -> M,
) -> M {
    let module = make_undisturbed(stable_hash(seed, name), name, made, make);
    let module = module.map(&mut NameIds { path: Vec::new() });
    // (`fork` would unpack quantized values.)
    module.to_device(&device.clone().inner()).train()
}

/// A module that was made, and what tells whether another thread drew meanwhile.
struct Draw<M> {
    module: M,
    values: BTreeMap<String, TensorData>,
    place: Vec<f32>,
}

/// Makes a module from this seed, again if another thread may have drawn from the generator.
fn make_undisturbed<M: Module>(
    seed: u64,
    name: &str,
    made: Option<M>,
    make: impl Fn(&Device) -> M,
) -> M {
    let host = Device::flex();
    let draw = |made: Option<M>| {
        host.seed(seed);
        let module = made.unwrap_or_else(|| make(&host.clone().autodiff()));
        // Reading initializes what is lazy. (`materialize` would fold adapters away.)
        let values = read_parameters(&module);
        Draw { module, values, place: place_of(&host) }
    };
    let _alone = for_one_layer();
    let start = start_of(seed, &host);
    let mut last = draw(made);
    if last.place == start {
        // Nobody drew.
        return last.module;
    }
    let mut other_values = 0;
    for _ in 0..ATTEMPTS {
        let before = std::mem::replace(&mut last, draw(None));
        if last.values == before.values {
            // Another thread would have had to draw the same both times.
            return last.module;
        }
        other_values = if last.place == before.place { other_values + 1 } else { 0 };
        if other_values == OTHER_VALUES {
            break;
        }
    }
    tracing::warn!(layer = name, "its initial parameters never came out twice the same");
    last.module
}

/// Tells the place of the generator when it has been seeded and nobody has drawn. Seeds it.
fn start_of(seed: u64, host: &Device) -> Vec<f32> {
    host.seed(seed);
    let start = place_of(host);
    host.seed(seed);
    start
}

/// Returns the id of the parameter at a path in the model.
pub(crate) fn id_of(path: &str) -> ParamId {
    ParamId::from(stable_hash(0, path))
}

/// Replaces the random ids of parameters by ids made of their paths, and takes values off
/// autodiff. Notes which of them [`train`](Module::train) must put back.
struct NameIds {
    path: Vec<String>,
}

impl NameIds {
    fn id(&self) -> ParamId {
        id_of(&self.path.join("."))
    }
}

impl ModuleMapper for NameIds {
    track_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let trains = is_trainable(&param);
        let (_, value, mapper) = param.consume();
        Param::from_mapped_value(self.id(), value.inner(), mapper).set_require_grad(trains)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (_, value, mapper) = param.consume();
        Param::from_mapped_value(self.id(), value.inner(), mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (_, value, mapper) = param.consume();
        Param::from_mapped_value(self.id(), value.inner(), mapper)
    }
}
