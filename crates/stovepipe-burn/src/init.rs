//! How parameters come to be: on the host, layer by layer, from a seed made of the run's seed and the
//! layer's name, with ids made of their paths. So neither number of stages, nor backend, nor process,
//! nor other threads change them.

use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::cell::{read_parameters, track_path};

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

/// FNV-1a over the bytes of `seed` and `name`, finished as in SplitMix64: the same on every platform
/// and in every version, which the standard library's hasher doesn't promise.
pub(crate) fn stable_hash(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    scramble(hash)
}

/// The last steps of SplitMix64: every bit of the result depends on every bit given.
pub(crate) fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_pinned() {
        // Initial parameters of saved runs depend on these.
        assert_eq!(stable_hash(0, "a"), 0x0d38_d3c8_a628_cc82);
        assert_eq!(stable_hash(0, "blocks.3"), 0x4b6b_15d9_5de3_1cf3);
        assert_eq!(stable_hash(7, "blocks.3"), 0x261c_173c_7569_994b);
    }
}
