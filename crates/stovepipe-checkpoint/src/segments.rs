//! The policies that cut stages into segments of layers: of each segment only the input is kept, and
//! segments are rebuilt one at a time, so that a stage holds the inputs of its micro-batches' segments
//! and the activations of one segment.

use std::collections::BTreeSet;

use stovepipe_schedule::{Retention, Stage, StageRetention};

use crate::{CheckpointPolicy, Layout, PolicyError};

/// Keeps the input of every n-th layer of a stage, and recomputes the n layers behind it in one go.
///
/// With as many layers as a stage has it is [`Always`](crate::Always); with 1, every layer is recomputed
/// from its own input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EveryLayers(usize);

impl EveryLayers {
    /// Segments of `layers` layers, at least 1; the last one of a stage may be shorter.
    #[must_use]
    pub fn new(layers: usize) -> Self {
        Self(layers.max(1))
    }
}

impl CheckpointPolicy for EveryLayers {
    fn name(&self) -> &str {
        "every-layers"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        by_stage(layout, |_, layers| segments_of(layers, self.0))
    }
}

/// Cuts a stage of L layers into segments of √L layers (Chen et al., arXiv 1604.06174): what is kept and
/// what is rebuilt at once are then about equal, for one recomputation of everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SqrtLayers;

impl CheckpointPolicy for SqrtLayers {
    fn name(&self) -> &str {
        "sqrt-layers"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        by_stage(layout, |_, layers| {
            // The smallest whole number whose square isn't below.
            let size = (1..=layers).find(|size| size * size >= layers).unwrap_or(1);
            segments_of(layers, size)
        })
    }
}

/// Recomputes these layers, each from its own input, and keeps what all others compute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selective {
    layers: BTreeSet<usize>,
}

impl Selective {
    /// The layers that are recomputed, counted from the model's first.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = usize>) -> Self {
        Self { layers: layers.into_iter().collect() }
    }
}

impl CheckpointPolicy for Selective {
    fn name(&self) -> &str {
        "selective"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let total: usize =
            Stage::first(layout.plan().stages()).map(|stage| layout.layers(stage)).sum();
        if let Some(&layer) = self.layers.last().filter(|&&layer| layer >= total) {
            return Err(PolicyError::Layer { layer, layers: total });
        }
        let mut first = 0;
        by_stage(layout, |_, layers| {
            let start = first;
            first += layers;
            let chosen = self.layers.range(start..first);
            chosen.map(|layer| layer - start..layer - start + 1).collect()
        })
    }
}

type Segments = Vec<std::ops::Range<usize>>;

/// `layers` cut into segments of `size`.
fn segments_of(layers: usize, size: usize) -> Segments {
    (0..layers).step_by(size).map(|start| start..(start + size).min(layers)).collect()
}

/// The same segments for every micro-batch of a stage. Asked once for each stage, in order.
pub(crate) fn by_stage(
    layout: Layout<'_>,
    mut segments: impl FnMut(Stage, usize) -> Segments,
) -> Result<Retention, PolicyError> {
    let stages = Stage::first(layout.plan().stages()).map(|stage| {
        let layers = layout.layers(stage);
        StageRetention::drop_segments(stage, layers, segments(stage, layers))
    });
    let stages: Vec<StageRetention> = stages.collect::<Result<_, _>>()?;
    Ok(Retention::from_fn(layout.plan(), |stage, _| stages[stage.index()].clone()))
}

#[cfg(test)]
mod tests {
    use stovepipe_schedule::{GPipe, MicroBatch, Schedule, Shape};

    use super::*;

    fn dropped(policy: &dyn CheckpointPolicy, layers: &[usize]) -> String {
        let plan = GPipe::default().plan(Shape::new(layers.len(), 3)).expect("a plan");
        let layout = Layout::new(&plan, layers).expect("fits");
        let retention = policy.retention(layout).expect("decides");
        let of = |stage, m| retention.of(stage, MicroBatch::new(m)).dropped().to_vec();
        let stages: Vec<String> = Stage::first(layers.len())
            .map(|stage| {
                assert_eq!(of(stage, 0), of(stage, 2));
                format!("{:?}", of(stage, 0))
            })
            .collect();
        stages.join(" ")
    }

    #[test]
    fn every_n_layers() {
        assert_eq!(dropped(&EveryLayers::new(2), &[5, 1]), "[0..2, 2..4, 4..5] [0..1]");
        assert_eq!(dropped(&EveryLayers::new(9), &[3]), "[0..3]");
        assert_eq!(dropped(&EveryLayers::new(0), &[2]), "[0..1, 1..2]");
    }

    #[test]
    fn the_square_root_of_the_layers() {
        assert_eq!(dropped(&SqrtLayers, &[9, 1]), "[0..3, 3..6, 6..9] [0..1]");
        assert_eq!(dropped(&SqrtLayers, &[5]), "[0..3, 3..5]");
    }

    #[test]
    fn selected_layers_are_counted_over_the_whole_model() {
        let policy = Selective::new([4, 1, 2]);
        assert_eq!(dropped(&policy, &[2, 3]), "[1..2] [0..1, 2..3]");
        assert_eq!(dropped(&Selective::default(), &[2]), "[]");
        let plan = GPipe::default().plan(Shape::new(1, 1)).expect("a plan");
        let error =
            policy.retention(Layout::new(&plan, &[4]).expect("fits")).expect_err("no layer 4");
        assert_eq!(error, PolicyError::Layer { layer: 4, layers: 4 });
    }
}
