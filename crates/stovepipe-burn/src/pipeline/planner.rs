//! The planner: from a schedule and a checkpoint policy to the program of a step.

use stovepipe_checkpoint::{CheckpointPolicy, lower};
use stovepipe_schedule::{
    Edges, ForwardOnly, MicroBatch, Mode, Plan, Program, Rank, Retention, Schedule, Shape, Stage,
};

use crate::error::build::BuildError;
use crate::model::replay::Unreplayable;

/// The schedule, the checkpoint policy and everything else that a program is made of.
pub(crate) struct Planner {
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) policy: Box<dyn CheckpointPolicy>,
    pub(crate) shape: Shape,
    /// The number of layers in each stage.
    pub(crate) layers: Vec<usize>,
    /// The rank of each stage; empty until the first plan has been made.
    pub(crate) placement: Vec<Rank>,
    /// The chain, and the edges of the model's skips.
    pub(crate) edges: Edges,
    /// The layers that can't be recomputed: number, name and reason.
    pub(crate) unreplayable: Vec<(usize, String, Unreplayable)>,
}

impl Planner {
    /// Plans a step. Refuses a plan of another shape or placement, or one that splits
    /// backwards.
    pub(crate) fn plan(&self, micro_batches: usize) -> Result<Plan, BuildError> {
        let plan = self.schedule.plan(Shape { micro_batches, ..self.shape })?;
        let refuse = |reason: String| {
            Err(BuildError::Schedule { schedule: self.schedule.name().to_owned(), reason })
        };
        if (plan.ranks(), plan.stages(), plan.micro_batches())
            != (self.shape.ranks, self.shape.stages(), micro_batches)
        {
            return refuse(format!(
                "for {} it planned {} ranks, {} stages and {} micro-batches",
                Shape { micro_batches, ..self.shape },
                plan.ranks(),
                plan.stages(),
                plan.micro_batches()
            ));
        }
        if plan.splits_backward() {
            return refuse(
                "its plan splits backwards into I and W, which Burn's autodiff can't; use one made \
                 of F and B, such as gpipe or 1f1b"
                    .to_owned(),
            );
        }
        if !self.placement.is_empty() && plan.placement() != self.placement {
            return refuse(format!(
                "with {micro_batches} micro-batches it places stages on other ranks than with {}",
                self.shape.micro_batches
            ));
        }
        Ok(plan)
    }

    /// Refuses a retention that drops a layer whose forward can't be run twice.
    fn check_replay(&self, retention: &Retention, micro_batches: usize) -> Result<(), BuildError> {
        for (layer, name, found) in &self.unreplayable {
            // Find the layer's stage, and its place there.
            let (mut stage, mut place) = (0, *layer);
            while place >= self.layers[stage] {
                place -= self.layers[stage];
                stage += 1;
            }
            let drops_layer = |micro_batch| {
                let dropped = retention.of(Stage::new(stage), micro_batch).dropped();
                dropped.iter().any(|segment| segment.contains(&place))
            };
            if MicroBatch::first(micro_batches).any(drops_layer) {
                let module = match &*found.path {
                    "" => found.module.to_owned(),
                    path => format!("{} (`{path}`)", found.module),
                };
                let (layer, advice) = (name.clone(), found.advice);
                return Err(BuildError::Unreplayable { layer, module, advice });
            }
        }
        Ok(())
    }

    /// Makes the program of a step: what is run, in which order, and what is kept until the
    /// backward.
    pub(crate) fn program(&self, mode: Mode, micro_batches: usize) -> Result<Program, BuildError> {
        let plan = match mode {
            // Only the placement counts, which is the same for every number of micro-batches. So
            // a schedule that plans for a fixed number serves smaller batches too.
            Mode::ForwardOnly => {
                let placed = self.plan(self.shape.micro_batches)?;
                ForwardOnly::on_placement_of(&placed, micro_batches)?
            }
            _ => self.plan(micro_batches)?,
        };
        if mode != Mode::ForwardOnly && plan.mode() != Mode::Training {
            return Err(BuildError::Schedule {
                schedule: self.schedule.name().to_owned(),
                reason: "its plan has no backwards; evaluation makes its own plan".to_owned(),
            });
        }
        let program = lower(&plan, &self.layers, &*self.policy, &self.edges)?;
        self.check_replay(program.retention(), micro_batches)?;
        Ok(program)
    }
}
