//! The rehearsal of one rank of a pipeline, alone.
//!
//! Its stages are made; in the place of the others there are stand-ins, which send what has
//! been recorded. So a stage of a model that no device can hold is tried on a single device.

use std::sync::Arc;

use stovepipe_runtime::{PlainThread, RankSetup, Workers};
use stovepipe_schedule::{Mode, Rank, Stage};

use crate::error::build::BuildError;
use crate::error::train::TrainError;
use crate::parameters::generator::LentGenerator;
use crate::pipeline::builder::Builder;
use crate::pipeline::spec::PipelineSpec;
use crate::profile::counter::{Count, MemoryCounter};
use crate::profile::stand_in::{RehearsedStage, StandIn};
use crate::profile::traffic::Traffic;
use crate::stage::batch::{Task, Values};
use crate::stage::tied_gradients::TiedUses;
use crate::value::boundary::{Boundary, into_packet};
use crate::value::packet::Packet;
use crate::value::side::{SideKind, SideValues, give};

/// The rank that [`Builder::rehearse`] runs, and the settings.
#[derive(Clone)]
pub struct Rehearsal {
    rank: usize,
    steps: usize,
    counter: Arc<dyn MemoryCounter>,
    side: SideValues,
}

impl Rehearsal {
    /// Rehearses two steps of this rank: in the second one the optimizer has its state.
    ///
    /// The counter counts what is allocated on the rank's device.
    #[must_use]
    pub fn new(rank: usize, counter: impl MemoryCounter + 'static) -> Self {
        Self { rank, steps: 2, counter: Arc::new(counter), side: SideValues::new() }
    }

    /// Sets the number of steps, at least 1.
    #[must_use]
    pub fn steps(self, steps: usize) -> Self {
        Self { steps: steps.max(1), ..self }
    }

    /// Adds a value that layers ask for by this name, as
    /// [`Pipeline::side_input`](crate::Pipeline::side_input) gives it to steps.
    ///
    /// Its first axis is the batch axis.
    #[must_use]
    pub fn side_input(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        give(&mut self.side, SideKind::PerSample, name, value);
        self
    }

    /// Adds a value that is the same for all samples, as
    /// [`Pipeline::side_constant`](crate::Pipeline::side_constant) gives it to steps.
    #[must_use]
    pub fn side_constant(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        give(&mut self.side, SideKind::Constant, name, value);
        self
    }
}

impl<I: Boundary, O: Boundary, T: Boundary> Builder<I, O, T> {
    /// Runs training steps of one rank alone, on the device that it has in the pipeline.
    ///
    /// For each step, returns the most bytes that were allocated at once beyond what there was
    /// before the rank's stages were made. The mini-batch itself isn't counted.
    ///
    /// What the rank receives is recorded first. The micro-batches run forward layer by layer,
    /// so that the whole model is never there, and what crosses a stage's boundaries is kept.
    /// In the place of gradients the rank receives values of their shapes, and it neither
    /// scales nor clips its own. Nothing else should allocate meanwhile.
    ///
    /// # Errors
    ///
    /// [`TrainError`], also if the counter can't tell [peaks](MemoryCounter::peak_bytes).
    pub fn rehearse(
        self,
        rehearsal: &Rehearsal,
        input: I,
        target: T,
    ) -> Result<Vec<u64>, TrainError> {
        let _generator = LentGenerator::take();
        let mut spec = self.assemble()?;
        let Rehearsal { rank, steps, ref counter, ref side } = *rehearsal;
        let ranks = spec.planner.shape.ranks;
        if rank >= ranks {
            return Err(TrainError::NoRank { rank, ranks });
        }
        let rank = Rank::new(rank);
        let rates = spec.rates.clone();
        let missing = BuildError::Missing { what: "learning rate", method: "learning_rate" };
        let task = Task::Train(rates.ok_or(missing)?.step());
        let (input, target) = (into_packet(input), Some(into_packet(target)));
        let values = Values { input, target, side: side.clone() };
        // The gradients aren't real: nothing may be forgotten or refused because of their size.
        (spec.settings.clipping, spec.settings.forgets_overflows) = (None, false);
        let batch = values.cut(spec.planner.shape.micro_batches, task, 0, 1.0)?;
        let program = Arc::new(spec.planner.program(Mode::Training, batch.inputs.len())?);
        // Layers may panic, so they run on a thread of their own.
        let record = || Traffic::record(&spec, &batch, rank);
        let recorded = std::thread::scope(|scope| scope.spawn(record).join());
        let traffic = Arc::new(recorded.map_err(|_| TrainError::Panicked)??);

        let mut setups: Vec<_> = Rank::first(ranks)
            .filter(|other| *other != rank)
            .map(|other| (other, stand_ins(&spec, other, &traffic)))
            .collect();
        let backend = Arc::clone(&spec.settings.backend);
        let thread = backend.rank_thread(rank.index()).map_err(BuildError::from)?;
        // The count begins before the stages are made.
        let count = Count::begin(&backend, spec.device(rank), counter);
        let count = Arc::new(count.map_err(BuildError::from)?);
        let stages = spec.stages(rank).into_iter();
        let stages = stages.map(|(stage, real)| (stage, RehearsedStage::Real(Box::new(real))));
        let stages: Vec<_> = stages.collect();
        let first = stages.first().map_or(Stage::new(0), |(stage, _)| *stage);
        let setup = RankSetup::new(stages, thread);
        // Arriving packets take memory of their own, as if they came from another device.
        setups.push((rank, setup.with_arrival_hook(|packet: Packet| packet.duplicate())));
        setups.sort_by_key(|(rank, _)| *rank);
        let setups = setups.into_iter().map(|(_, setup)| setup).collect();
        let mut workers = Workers::start(setups).map_err(BuildError::from)?;

        let batch = Arc::new(batch);
        let mut peaks = Vec::with_capacity(steps);
        for _ in 0..steps {
            workers.step(&program, Arc::clone(&batch))?;
            // This runs on the rank thread, which is the one that the device knows.
            let count = Arc::clone(&count);
            let most = workers.visit(first, move |_| count.most())?;
            peaks.push(most.map_err(BuildError::from)?.ok_or(TrainError::NoPeaks)?);
        }
        Ok(peaks)
    }
}

/// Sets up a rank whose stages are all stand-ins.
fn stand_ins(spec: &PipelineSpec, rank: Rank, traffic: &Arc<Traffic>) -> RankSetup<RehearsedStage> {
    let stages = spec.partition.parts();
    let own = Stage::first(stages).filter(|stage| spec.planner.placement[stage.index()] == rank);
    let shapes = Arc::new(spec.shapes_of_ties());
    let stand_in = |stage: Stage| {
        let stand_in = StandIn {
            stage: stage.index(),
            is_last: stage.index() + 1 == stages,
            routes: spec.routes(stage),
            traffic: Arc::clone(traffic),
            tied: TiedUses::of(stage, &spec.settings.ties, &spec.partition),
            shapes: Arc::clone(&shapes),
        };
        (stage, RehearsedStage::StandIn(stand_in))
    };
    RankSetup::new(own.map(stand_in).collect(), Box::new(PlainThread))
}
