//! How parameters come to be: on the host, layer by layer, from a seed made of the run's seed and the
//! layer's name, with ids made of their paths. So neither number of stages, nor backend, nor process,
//! nor other threads change them.

use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::hash::stable_hash;
use crate::parameters::path::track_path;
use crate::parameters::read::read_parameters;

/// Burn's generators are process-wide: only one layer at a time may seed them and draw.
static GENERATOR: Mutex<()> = Mutex::new(());

/// How often a module is made again before its values are taken as they are: an initialization that
/// draws from elsewhere never agrees with itself.
const ATTEMPTS: usize = 100;

/// Makes a module on the host, moves it to `device` with gradients on, and names its parameters.
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
        // Threads that draw numbers of their own meanwhile can't be kept from the generator, but they
        // are found out: they would have to disturb it twice in the same way.
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
