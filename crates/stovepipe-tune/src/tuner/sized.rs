//! [`SizedLayers`]: what the layers cost at the two sizes that a number of micro-batches makes.

use std::ops::Range;

use super::request::Request;
use crate::profile::{LayerCost, SkipCost};

/// Sums from the first layer on, so that those of any layers are a difference.
struct Sums {
    forward: Vec<f64>,
    backward: Vec<f64>,
    recompute: Vec<f64>,
}

impl Sums {
    fn of(layers: &[LayerCost]) -> Self {
        let sums = |time: fn(&LayerCost) -> f64| summed(layers.iter().map(time));
        Self {
            forward: sums(|layer| layer.forward),
            backward: sums(|layer| layer.backward),
            recompute: sums(|layer| layer.recompute),
        }
    }
}

fn summed(times: impl Iterator<Item = f64>) -> Vec<f64> {
    let sums = times.scan(0.0, |sum, time| {
        *sum += time;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

fn between(sums: &[f64], layers: &Range<usize>) -> f64 {
    sums[layers.end] - sums[layers.start]
}

/// The seconds of one micro-batch on a rank of speed 1.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) forward: f64,
    pub(super) backward: f64,
}

/// The costs of the layers for a number of micro-batches, which have one or two sizes.
pub(super) struct SizedLayers {
    pub(super) micro_batches: usize,
    /// How many micro-batches are of the larger size. They come first.
    pub(super) larger: usize,
    /// The layers at the larger size.
    pub(super) large: Vec<LayerCost>,
    /// The skips at the larger size.
    pub(super) skips: Vec<SkipCost>,
    sums: [Sums; 2],
    updates: Vec<f64>,
}

impl SizedLayers {
    /// Those of the request's layers. The sizes must be within the measured ones.
    pub(super) fn new(request: &Request<'_>, micro_batches: usize) -> Self {
        let (small, large) = request.sizes(micro_batches);
        let at = |samples| request.profile.at(samples).unwrap_or_default();
        let (small, large, skips) = (at(small), at(large), request.profile.skips_at(large));
        let updates = request.profile.layers().iter().map(|layer| layer.update.median);
        Self {
            micro_batches,
            larger: request.batch % micro_batches,
            sums: [Sums::of(&small), Sums::of(&large)],
            updates: summed(updates),
            large,
            skips,
        }
    }

    pub(super) fn layers(&self) -> usize {
        self.large.len()
    }

    /// Whether a micro-batch has the larger size, as 0 or 1.
    pub(super) fn class(&self, micro_batch: usize) -> usize {
        usize::from(micro_batch < self.larger)
    }

    /// Forward and backward of some layers at a size.
    pub(super) fn times(&self, class: usize, layers: &Range<usize>) -> Times {
        let sums = &self.sums[class];
        Times { forward: between(&sums.forward, layers), backward: between(&sums.backward, layers) }
    }

    /// The recomputation of some layers at a size.
    pub(super) fn recompute(&self, class: usize, layers: &Range<usize>) -> f64 {
        between(&self.sums[class].recompute, layers)
    }

    /// The smaller of the times at both sizes.
    pub(super) fn least(&self, layers: &Range<usize>) -> Times {
        let [small, large] = [0, 1].map(|class| self.times(class, layers));
        Times {
            forward: small.forward.min(large.forward),
            backward: small.backward.min(large.backward),
        }
    }

    /// Forward and backward of all micro-batches, and recomputation of a part of them.
    pub(super) fn work(&self, layers: &Range<usize>, recomputed: f64) -> f64 {
        let of_class = |class: usize| {
            let times = self.times(class, layers);
            times.forward + times.backward + recomputed * self.recompute(class, layers)
        };
        let smaller = (self.micro_batches - self.larger) as f64;
        let larger = if self.larger > 0 { self.larger as f64 * of_class(1) } else { 0.0 };
        smaller * of_class(0) + larger
    }

    /// The updates of some layers.
    pub(super) fn updates(&self, layers: &Range<usize>) -> f64 {
        between(&self.updates, layers)
    }

    /// The bytes that pass on between two layers, without skips.
    pub(super) fn boundary(&self, before: usize) -> u64 {
        self.large[before - 1].output_bytes
    }
}
