//! The checks of what a backend says of its devices, and of where workers run.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use burn::tensor::Tensor;

use super::model::failure_of;
use super::{Outcome, Verdict};
use crate::backend::Backend;

/// Checks that there are devices, without autodiff, in the same order each time, and that they
/// have names.
pub(super) fn lists_devices(backend: &Arc<dyn Backend>) -> Verdict {
    if backend.name().is_empty() {
        return Err("name() is empty".to_owned());
    }
    let devices = backend.devices().map_err(failure_of("devices()"))?;
    if devices.is_empty() {
        return Err(
            "devices() is empty; it should be an error that says what was looked for".to_owned()
        );
    }
    if let Some(device) = devices.iter().find(|device| device.is_autodiff()) {
        return Err(format!("{device:?} has autodiff on; stages turn it on themselves"));
    }
    if backend.devices().map_err(failure_of("devices(), called again,"))? != devices {
        return Err("devices() returns others when it is called again".to_owned());
    }
    match devices.iter().find(|device| backend.device_name(device).is_empty()) {
        Some(device) => Err(format!("device_name() of {device:?} is empty")),
        None => Ok(Outcome::Kept),
    }
}

/// Checks that a rank thread runs its worker once and returns after it; also for more ranks
/// than devices.
pub(super) fn runs_workers(backend: &Arc<dyn Backend>) -> Verdict {
    let ranks = backend.devices().map_err(failure_of("devices()"))?.len() + 2;
    for rank in 0..ranks {
        let thread = backend.rank_thread(rank).map_err(failure_of("rank_thread()"))?;
        let (sender, ran) = mpsc::channel();
        thread.run(Box::new(move || {
            // A worker that runs next to its caller, not before it returns, would be too late.
            std::thread::sleep(Duration::from_millis(5));
            sender.send(()).ok();
        }));
        if ran.try_recv().is_err() {
            return Err(format!("the thread of rank {rank} returned before its worker had run"));
        }
    }
    Ok(Outcome::Kept)
}

/// Checks that queued work is done after synchronizing, and that both may be called at any
/// time.
pub(super) fn flushes_and_synchronizes(backend: &Arc<dyn Backend>) -> Verdict {
    for device in backend.devices().map_err(failure_of("devices()"))? {
        let ones = Tensor::<2>::ones([4, 4], &device);
        let product = ones.clone().matmul(ones);
        for _ in 0..2 {
            backend.flush(&device).map_err(failure_of("flush()"))?;
        }
        for _ in 0..2 {
            backend.synchronize(&device).map_err(failure_of("synchronize()"))?;
        }
        let found: Vec<f32> = product.into_data().iter::<f32>().collect();
        if found != [4.0; 16] {
            return Err(format!("a product of ones on {device:?} is {found:?} instead of 4"));
        }
    }
    Ok(Outcome::Kept)
}
