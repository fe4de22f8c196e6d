//! The same bits however a model is cut, scheduled and recomputed.

use stovepipe::prelude::*;
use stovepipe::recompute::{
    Always, Budget, EveryLayers, ExceptLast, LayerActivations, Layout, Never, PolicyError,
    Selective, SqrtLayers,
};
use stovepipe::schedule::{Drain, GPipe, LayerMemory, OneFOneB, Retention, Stage};
use stovepipe::{Boundary, Builder};

use crate::pipelines::on_one_stage;

/// Makes a schedule, for tables of them.
pub type MakeSchedule = fn() -> Box<dyn Schedule>;
/// Makes a checkpoint policy, for tables of them.
pub type MakePolicy = fn() -> Box<dyn CheckpointPolicy>;

/// Two schedules that drain micro-batches in the same order.
const SCHEDULES: [MakeSchedule; 2] =
    [|| Box::new(OneFOneB), || Box::new(GPipe::new(Drain::Forward))];

const POLICIES: [MakePolicy; 7] = [
    || Box::new(Never),
    || Box::new(Always),
    || Box::new(ExceptLast),
    || Box::new(EveryLayers::new(1)),
    || Box::new(SqrtLayers),
    || Box::new(Selective::new([1, 2])),
    || Box::new(HalfBudget),
];

/// Builds, runs and reads a pipeline on 1 to 4 stages, with each schedule and policy. Returns what
/// one stage gives.
///
/// # Panics
///
/// If any gives something else than one stage.
pub fn same_on_any_cut<I, O, T, R>(
    builder: impl Fn() -> Builder<I, O, T>,
    run: impl Fn(Pipeline<I, O, T>) -> R,
) -> R
where
    I: Boundary,
    O: Boundary,
    T: Boundary,
    R: PartialEq,
{
    let expected = run(on_one_stage(builder()));
    for schedule in SCHEDULES {
        for policy in POLICIES {
            for stages in 1..=4 {
                let pipeline = builder()
                    .backend(Flex::new())
                    .stages(stages)
                    .micro_batches(3)
                    .schedule(schedule())
                    .checkpoint(policy())
                    .layer_costs(LayerCosts::Uniform)
                    .seed(11)
                    .build()
                    .expect("a pipeline");
                let what = format!("{} {} {stages}", schedule().name(), policy().name());
                assert!(run(pipeline) == expected, "{what}");
            }
        }
    }
    expected
}

/// A budget of half of what all layers of the fullest stage keep, were they all the same.
struct HalfBudget;

impl CheckpointPolicy for HalfBudget {
    fn name(&self) -> &str {
        "half-budget"
    }

    fn retention(&self, layout: Layout<'_>) -> Result<Retention, PolicyError> {
        let layers = Stage::first(layout.plan().stages()).map(|stage| layout.layers(stage));
        let layers: Vec<usize> = layers.collect();
        let in_flight = layout.plan().stage_activations();
        let kept = layers.iter().zip(in_flight).map(|(layers, m)| 10 * (layers * m) as u64);
        let memory = LayerMemory { activations: 10, input: 1, ..Default::default() };
        let layer = LayerActivations { memory, recompute: 1.0 };
        // At least what rebuilding everything from the first input needs.
        let least = layers.iter().map(|layers| 10 * *layers as u64 + 3).max().unwrap_or(0);
        let budget = (kept.max().unwrap_or(0) / 2).max(least);
        Budget::new(budget, vec![layer; layers.iter().sum()]).retention(layout)
    }
}
