//! Burn's random generator on the processor, which layers are initialized with.
//!
//! It is one for the whole process, and its state can neither be read nor put back. So two
//! things can't be had, and this is what there is instead:
//!
//! - Callers find it as if they had drawn one tensor and seeded it with that: a
//!   [`LentGenerator`] draws first and seeds last. So what they draw afterwards depends on their
//!   own seed, and on nothing that a pipeline does.
//! - Other threads may draw while a layer is initialized. That shows in the generator's
//!   [place](place_of): it isn't the same when the layer is made once more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Distribution, Tensor};

use crate::hash::scramble;

/// A lock that lets one layer at a time seed the generator and draw.
static LAYER: Mutex<()> = Mutex::new(());

/// The calls that have the generator now.
static LENT: Mutex<Lent> = Mutex::new(Lent { calls: 0, seed: 0 });

/// The number of calls that have the generator, and the seed for its owner.
struct Lent {
    calls: usize,
    seed: u64,
}

/// A call that may seed the generator, and leaves it to the caller as the head of this file
/// says.
pub(crate) struct LentGenerator(());

impl LentGenerator {
    /// Takes the generator; if another thread has it already, together with that one.
    pub(crate) fn take() -> Self {
        let mut lent = locked(&LENT);
        if lent.calls == 0 {
            let mix =
                |seed: u64, drawn: &f32| scramble(seed.rotate_left(7) ^ u64::from(drawn.to_bits()));
            lent.seed = place_of(&Device::flex()).iter().fold(1, mix);
        }
        lent.calls += 1;
        Self(())
    }
}

impl Drop for LentGenerator {
    fn drop(&mut self) {
        let mut lent = locked(&LENT);
        lent.calls -= 1;
        if lent.calls == 0 {
            Device::flex().seed(lent.seed);
        }
    }
}

/// Keeps other layers from the generator until it is dropped.
pub(crate) fn for_one_layer() -> MutexGuard<'static, ()> {
    locked(&LAYER)
}

/// Tells the place of a device's generator by its next numbers. They are drawn for that.
pub(crate) fn place_of(device: &Device) -> Vec<f32> {
    let next = Tensor::<1>::random([8], Distribution::Default, device);
    next.into_data().iter::<f32>().collect()
}

/// Locks, also after a panic in another layer's function: it left nothing that matters here.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
