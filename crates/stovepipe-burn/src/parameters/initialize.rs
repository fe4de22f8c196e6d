//! Initializing parameters on the host, layer by layer.
//!
//! A layer's seed is made of the run's seed and the layer's name, and ids are made of the
//! parameters' paths. So they don't depend on the number of stages, the backend, the process,
//! or other threads.

use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::hash::stable_hash;
use crate::parameters::path::track_path;
use crate::parameters::read::read_parameters;

/// A lock that lets one layer at a time seed Burn's generators and draw, as they are
/// process-wide.
static GENERATOR: Mutex<()> = Mutex::new(());

/// The number of times that a module is made again before its values are taken as they are.
///
/// An initialization that draws from another source never gives the same values twice.
const ATTEMPTS: usize = 100;

/// Makes a module on the host, moves it to `device` with gradients on, and names its
/// parameters.
pub(crate) fn initialize<M: Module>(
    seed: u64,
    name: &str,
    device: &Device,
    make: impl Fn(&Device) -> M,
) -> M {
    let host = Device::flex();
    let draw = || {
        host.seed(stable_hash(seed, name));
        make(&host.clone().autodiff()).materialize()
    };
    let module = {
        // A panic in another layer's initialization leaves nothing behind that matters here.
        let _guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        let mut module = draw();
        let mut values = read_parameters(&module);
        // Other threads of the program can draw from the generator meanwhile, which no lock
        // prevents. Two equal results in a row show that none did: it would have had to draw
        // the same both times.
        let mut agree = false;
        for _ in 0..ATTEMPTS {
            module = draw();
            let before = std::mem::replace(&mut values, read_parameters(&module));
            agree = values == before;
            if agree {
                break;
            }
        }
        if !agree {
            tracing::warn!(layer = name, "its initial parameters never came out twice the same");
        }
        module
    };
    let module = module.map(&mut NameIds { path: Vec::new() });
    module.fork(&device.clone().autodiff())
}

/// Replaces the random ids of parameters by ids made of their paths.
struct NameIds {
    path: Vec<String>,
}

macro_rules! rename {
    ($method:ident, $kind:ty) => {
        fn $method<const D: usize>(
            &mut self,
            param: Param<Tensor<D, $kind>>,
        ) -> Param<Tensor<D, $kind>> {
            let (_, value, mapper) = param.consume();
            let id = ParamId::from(stable_hash(0, &self.path.join(".")));
            Param::from_mapped_value(id, value, mapper)
        }
    };
}

impl ModuleMapper for NameIds {
    track_path!();

    rename!(map_float, burn::tensor::Float);
    rename!(map_int, Int);
    rename!(map_bool, Bool);
}
