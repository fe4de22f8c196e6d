//! Made-up profiles.

use stovepipe_schedule::LayerMemory;
use stovepipe_tune::{LayerProfile, Measurement, Profile, Time};

/// Layers whose forward and backward take `fixed` seconds and `each` more for every sample, and
/// that keep 10 bytes for each, of which one is the input.
pub(crate) fn profile(layers: usize, fixed: f64, each: f64, sizes: &[usize]) -> Profile {
    let measurement = |&samples: &usize| {
        let time = Time::exactly(fixed + each * samples as f64);
        let samples_bytes = samples as u64;
        Measurement {
            samples,
            forward: time,
            recompute: time,
            backward: time,
            input_bytes: samples_bytes,
            output_bytes: samples_bytes,
            memory: Some(LayerMemory { activations: 10 * samples_bytes, ..LayerMemory::default() }),
        }
    };
    let layer = |number: usize| LayerProfile {
        name: format!("layers.{number}"),
        parameter_bytes: 100,
        gradient_bytes: 100,
        optimizer_bytes: 200,
        update_bytes: 0,
        staged_bytes: 0,
        update: Time::default(),
        measurements: sizes.iter().map(measurement).collect(),
    };
    Profile::new("made up", (0..layers).map(layer).collect()).expect("valid")
}

/// Layers measured at one size that keep nothing; their forward, backward, recomputation and update
/// in seconds.
pub(crate) fn timed(samples: usize, layers: &[[f64; 4]]) -> Profile {
    let layer = |(number, &[forward, backward, recompute, update]): (usize, &[f64; 4])| {
        let [forward, backward, recompute, update] =
            [forward, backward, recompute, update].map(Time::exactly);
        let memory = Some(LayerMemory::default());
        let (input_bytes, output_bytes) = (8, 8);
        let measurement = Measurement {
            samples,
            forward,
            recompute,
            backward,
            input_bytes,
            output_bytes,
            memory,
        };
        LayerProfile {
            name: format!("layers.{number}"),
            parameter_bytes: 0,
            gradient_bytes: 0,
            optimizer_bytes: 0,
            update_bytes: 0,
            staged_bytes: 0,
            update,
            measurements: vec![measurement],
        }
    };
    Profile::new("made up", layers.iter().enumerate().map(layer).collect()).expect("valid")
}
