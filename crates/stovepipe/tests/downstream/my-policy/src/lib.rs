//! A checkpoint policy that knows nothing of stovepipe except `stovepipe-checkpoint` and
//! `stovepipe-schedule`.

use std::collections::{HashMap, HashSet};

use stovepipe_checkpoint::{CheckpointPolicy, Layout, PolicyError};
use stovepipe_schedule::{ComputeKind, Retention, StageRetention};

/// Keeps the activations that are needed soon, and recomputes those that would lie about for long.
pub struct SoonNeeded {
    /// How many actions of the rank may stand between a forward and its backward.
    pub within: usize,
}

impl CheckpointPolicy for SoonNeeded {
    fn name(&self) -> &str {
        "soon-needed"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let mut kept = HashSet::new();
        for row in layout.plan().rows() {
            let mut forwards = HashMap::new();
            for (position, action) in row.iter().enumerate() {
                let whose = (action.stage, action.micro_batch);
                match action.kind {
                    ComputeKind::Forward => {
                        forwards.insert(whose, position);
                    }
                    ComputeKind::Backward | ComputeKind::BackwardInput => {
                        let between = forwards.get(&whose).map(|forward| position - forward - 1);
                        if between.is_some_and(|between| between <= self.within) {
                            kept.insert(whose);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(Retention::from_fn(layout.plan(), |stage, micro_batch| {
            if kept.contains(&(stage, micro_batch)) {
                StageRetention::keep_all()
            } else {
                StageRetention::drop_all(layout.layers(stage))
            }
        }))
    }
}
