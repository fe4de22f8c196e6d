//! Segments of layers, for the policies that cut stages into them.
//!
//! Of each segment only the input is kept, and segments are rebuilt one at a time. So a stage holds
//! the inputs of its micro-batches' segments, and the activations of one segment.

use std::ops::Range;

use stovepipe_schedule::{Retention, Stage, StageRetention};

use crate::error::PolicyError;
use crate::policy::Layout;

type Segments = Vec<Range<usize>>;

/// `layers` cut into segments of `size`.
pub(super) fn segments_of(layers: usize, size: usize) -> Segments {
    (0..layers).step_by(size).map(|start| start..(start + size).min(layers)).collect()
}

/// The same segments for every micro-batch of a stage. Asked once for each stage, in order.
pub(super) fn by_stage(
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
    use crate::{CheckpointPolicy, EveryLayers, Selective, SqrtLayers};

    fn dropped(policy: &dyn CheckpointPolicy, layers: &[usize]) -> String {
        let plan = GPipe::default().plan(Shape::new(layers.len(), 3)).expect("a plan");
        let layout = Layout::new(&plan, layers).expect("fits");
        let retention = policy.retention(layout).expect("decides");
        let segments = |stage, m| retention.of(stage, MicroBatch::new(m)).dropped().to_vec();
        let stages: Vec<String> = Stage::first(layers.len())
            .map(|stage| {
                assert_eq!(segments(stage, 0), segments(stage, 2));
                format!("{:?}", segments(stage, 0))
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
