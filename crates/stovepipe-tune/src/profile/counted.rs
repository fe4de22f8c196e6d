//! The counted bytes of a layer as the file holds them. Its input, output and gradients have fields
//! of their own there, whether or not anything was counted.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stovepipe_schedule::LayerMemory;

#[derive(Serialize, Deserialize)]
struct Counted {
    activation_bytes: u64,
    forward_bytes: u64,
    untaped_bytes: u64,
    backward_bytes: u64,
}

pub(super) fn serialize<S: Serializer>(
    memory: &Option<LayerMemory>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let counted = memory.map(|memory| Counted {
        activation_bytes: memory.activations,
        forward_bytes: memory.forward,
        untaped_bytes: memory.untaped,
        backward_bytes: memory.backward,
    });
    counted.serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<LayerMemory>, D::Error> {
    let counted = Option::<Counted>::deserialize(from)?;
    Ok(counted.map(|counted| LayerMemory {
        activations: counted.activation_bytes,
        forward: counted.forward_bytes,
        untaped: counted.untaped_bytes,
        backward: counted.backward_bytes,
        ..LayerMemory::default()
    }))
}
