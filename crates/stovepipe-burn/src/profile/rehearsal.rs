//! One rank of a pipeline by itself: its stages are made, the others are played by stand-ins that send what
//! has been recorded. So a stage of a model that fits nowhere can be tried on a single device.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures::executor::block_on;
use stovepipe_runtime::{Begin, Job, RankExecutor, StageCompute, StepError};
use stovepipe_schedule::{MicroBatch, Mode, Program, Rank, Stage, StageRetention};
use stovepipe_transport::{InProcess, Tag, Transport, TransportError};

use crate::autodiff::layer_run::LayerRun;
use crate::autodiff::tape::{Forward, Forwarded};
use crate::backend::rank_work::spawn;
use crate::error::{BuildError, TrainError};
use crate::layer::context::{ForwardKey, Pass, SkipValues};
use crate::pipeline::builder::Builder;
use crate::pipeline::spec::PipelineSpec;
use crate::profile::counter::{Count, MemoryCounter};
use crate::stage::batch::{Batch, Task, Values};
use crate::stage::burn_stage::StageOutput;
use crate::stage::report::Report;
use crate::stage::routes::{Routes, SkipStore, pack};
use crate::value::boundary::{Boundary, into_packet};
use crate::value::packet::Packet;

/// Which rank [`Builder::rehearse`] runs, and how.
#[derive(Clone)]
pub struct Rehearsal {
    rank: usize,
    steps: usize,
    counter: Arc<dyn MemoryCounter>,
    side: BTreeMap<String, Packet>,
}

impl Rehearsal {
    /// Two steps of this rank: in the second one the optimizer has its state. The counter says what is
    /// allocated on the rank's device.
    #[must_use]
    pub fn new(rank: usize, counter: impl MemoryCounter + 'static) -> Self {
        Self { rank, steps: 2, counter: Arc::new(counter), side: BTreeMap::new() }
    }

    /// So many steps, at least 1.
    #[must_use]
    pub fn steps(self, steps: usize) -> Self {
        Self { steps: steps.max(1), ..self }
    }

    /// A value that layers ask for by this name, as
    /// [`Pipeline::side_input`](crate::Pipeline::side_input) gives it to steps.
    #[must_use]
    pub fn side_input(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        self.side.insert(name.into(), into_packet(value));
        self
    }
}

impl<I: Boundary, O: Boundary, T: Boundary> Builder<I, O, T> {
    /// Runs training steps of one rank alone, on the device that it has in the pipeline, and returns for
    /// each the most bytes that were allocated at once beyond what there was before the rank's stages were
    /// made. The mini-batch itself isn't counted.
    ///
    /// What the rank receives is recorded first: layer by layer, so that the whole model is never there, the
    /// micro-batches run forward, and what crosses a stage's boundaries is kept for it. In the place of
    /// gradients it receives values of their shapes, and neither scales nor clips its own. Nothing else
    /// should allocate meanwhile.
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
        let mut spec = self.assemble()?;
        let Rehearsal { rank, steps, ref counter, ref side } = *rehearsal;
        let ranks = spec.planner.shape.ranks;
        if rank >= ranks {
            return Err(StepError::Setup(format!("there is no rank {rank} among {ranks}")).into());
        }
        let rate = spec
            .rates
            .clone()
            .ok_or(BuildError::Missing { what: "learning rate", method: "learning_rate" });
        let task = Task::Train(rate?.step());
        let (input, target) = (into_packet(input), Some(into_packet(target)));
        let values = Values { input, target, side: side.clone() };
        // Gradients are made up: nothing may be skipped or refused because of their size.
        (spec.settings.clipping, spec.settings.forgets_overflows) = (None, false);
        let batch = values.cut(spec.planner.shape.micro_batches, task, 0, 1.0)?;
        let program = spec.planner.program(Mode::Training, batch.inputs.len())?;
        // Layers may panic.
        let record = || Traffic::record(&spec, &batch, Rank::new(rank));
        let recorded = std::thread::scope(|scope| scope.spawn(record).join());
        let traffic = recorded.map_err(|_| {
            StepError::Setup("a layer panicked while its output was recorded".to_owned())
        })??;
        let play = Play {
            program: Arc::new(program),
            batch: Arc::new(batch),
            traffic: Arc::new(traffic),
            steps,
        };
        play.run(&mut spec, Rank::new(rank), counter)
    }
}

/// What crosses the boundaries of stages, for each micro-batch.
struct Traffic {
    /// The input of each stage; of the last one also the output.
    chain: Vec<Vec<Packet>>,
    /// On skip connections.
    skips: SkipStore,
}

impl Traffic {
    /// Runs all layers forward, of which one is there at a time.
    fn record(spec: &PipelineSpec, batch: &Batch, rank: Rank) -> Result<Self, TrainError> {
        let device = spec.device(rank).clone();
        let backend = &spec.settings.backend;
        let received = batch.inputs.iter().map(|input| backend.receive(input.clone(), &device));
        let mut values = received.collect::<Result<Vec<Packet>, _>>().map_err(BuildError::from)?;
        let mut stashed: Vec<SkipValues> = vec![SkipValues::new(); values.len()];
        let (mut chain, mut skips) = (Vec::new(), SkipStore::new());
        for stage in 0..spec.partition.parts() {
            chain.push(values.clone());
            for layer in spec.partition.range(stage) {
                let mut layer = spec.layer(layer, rank);
                for (m, value) in values.iter_mut().enumerate() {
                    let run = LayerRun {
                        backend: &**backend,
                        device: &device,
                        pass: Pass::Train,
                        key: ForwardKey { seed: spec.settings.seed, updates: 0, micro_batch: m },
                        samples: batch.samples[m].clone(),
                        side: batch.side.get(m),
                    };
                    let inputs = std::mem::replace(value, Packet::of(Vec::new())).into_values();
                    let pop = |skip: &str| stashed[m].remove(skip);
                    let forwarded = run.forward(&mut *layer, inputs, Forward::Untaped, pop);
                    let Forwarded { outputs, stashed: new, .. } =
                        forwarded.map_err(|error| StepError::Setup(error.to_string()))?;
                    *value = Packet::of(outputs);
                    skips.extend(new.iter().map(|(skip, v)| ((m, skip.clone()), v.clone())));
                    stashed[m].extend(new);
                }
            }
        }
        chain.push(values);
        Ok(Self { chain, skips })
    }

    /// What goes along the edges of a stage: values behind it, or gradients before it.
    fn packets(
        &self,
        m: usize,
        own: Option<usize>,
        routes: &[Vec<String>],
        chain: usize,
    ) -> Vec<Packet> {
        let own = own.map(|place| self.chain[place][m].clone());
        let travelling = routes.iter().flatten().filter_map(|name| {
            let key = (m, name.clone());
            self.skips.get(&key).map(|value| (key, value.clone()))
        });
        pack(m, own, routes.to_vec(), chain, &mut travelling.collect())
    }
}

/// A stage that sends what was recorded, and throws away what it receives.
struct StandIn {
    stage: usize,
    is_last: bool,
    routes: Routes,
    traffic: Arc<Traffic>,
}

impl StageCompute for StandIn {
    type Value = Packet;
    type Input = Batch;
    type Output = StageOutput;
    type Error = Infallible;

    fn begin(&mut self, _: Begin<'_, Batch>) -> Result<(), Infallible> {
        Ok(())
    }

    fn forward(
        &mut self,
        m: MicroBatch,
        _: Vec<Packet>,
        _: &StageRetention,
    ) -> Result<Vec<Packet>, Infallible> {
        let own = (!self.is_last).then_some(self.stage + 1);
        Ok(self.traffic.packets(m.index(), own, &self.routes.outgoing, 0))
    }

    fn recompute(&mut self, _: MicroBatch, _: &StageRetention) -> Result<(), Infallible> {
        Ok(())
    }

    fn backward(
        &mut self,
        m: MicroBatch,
        _: Vec<Packet>,
        _: &StageRetention,
    ) -> Result<Vec<Packet>, Infallible> {
        let own = (self.stage > 0).then_some(self.stage);
        let chain = self.routes.incoming.len().saturating_sub(1);
        let packets = self.traffic.packets(m.index(), own, &self.routes.incoming, chain);
        Ok(packets.iter().map(Packet::as_gradients).collect())
    }

    fn finish(&mut self) -> Result<Vec<u8>, Infallible> {
        // A weight to divide by.
        let losses = if self.is_last { vec![(0.0, 1.0)] } else { Vec::new() };
        Ok(Report { losses, ..Report::default() }.encode())
    }

    fn prepare(&mut self, _: &[Vec<u8>]) -> Result<(), Infallible> {
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn abandon(&mut self) {}

    fn take_output(&mut self) -> StageOutput {
        StageOutput::default()
    }
}

/// What arrives takes memory of its own, as if it came from another device.
struct Arriving(InProcess<Packet>);

#[async_trait]
impl Transport<Packet> for Arriving {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    async fn send(&self, to: usize, tag: Tag, value: Packet) -> Result<(), TransportError> {
        self.0.send(to, tag, value).await
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<Packet, TransportError> {
        Ok(self.0.recv(from, tag).await?.duplicate())
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        self.0.all_gather(step, round, bytes).await
    }

    fn abort(&self, step: u64, reason: &str) {
        self.0.abort(step, reason);
    }

    fn end_step(&self, step: u64) {
        self.0.end_step(step);
    }
}

/// What is played.
#[derive(Clone)]
struct Play {
    program: Arc<Program>,
    batch: Arc<Batch>,
    traffic: Arc<Traffic>,
    steps: usize,
}

impl Play {
    /// Runs `rank` in earnest.
    fn run(
        self,
        spec: &mut PipelineSpec,
        rank: Rank,
        counter: &Arc<dyn MemoryCounter>,
    ) -> Result<Vec<u64>, TrainError> {
        let mut endpoints = InProcess::group(spec.planner.shape.ranks);
        let own = Arriving(endpoints.remove(rank.index()));
        let ranks: Vec<Rank> = endpoints.iter().map(|other| Rank::new(other.rank())).collect();
        let mut others = Vec::new();
        for endpoint in endpoints {
            let executor = self.stand_in(spec, Rank::new(endpoint.rank()));
            let play = self.clone();
            others.push(std::thread::spawn(move || play.steps(executor, &endpoint, None)));
        }
        let backend = Arc::clone(&spec.settings.backend);
        let thread = backend.rank_thread(rank.index()).map_err(BuildError::from)?;
        // Begins before the stages are made.
        let count = Count::begin(&backend, spec.device(rank), counter);
        let count = count.map_err(BuildError::from)?;
        let executor = RankExecutor::new(rank, spec.stages(rank));
        let done = spawn(thread, move || self.steps(executor, &own, Some(count))).finish();
        let mut failed = None;
        for (other, rank) in others.into_iter().zip(ranks) {
            let done = other.join().unwrap_or(Err(StepError::WorkerGone { rank }));
            failed = failed.or(done.err().filter(|error| !error.is_echo()));
        }
        match (done.unwrap_or(Err(StepError::WorkerGone { rank })), failed) {
            (Err(error), Some(cause)) if error.is_echo() => Err(cause.into()),
            (done, _) => Ok(done?),
        }
    }

    fn stand_in(&self, spec: &PipelineSpec, rank: Rank) -> RankExecutor<StandIn> {
        let stages = spec.partition.parts();
        let own = Stage::first(stages).filter(|s| spec.planner.placement[s.index()] == rank);
        let stand_in = |stage: Stage| {
            let (routes, traffic) = (spec.routes(stage), Arc::clone(&self.traffic));
            let is_last = stage.index() + 1 == stages;
            (stage, StandIn { stage: stage.index(), is_last, routes, traffic })
        };
        RankExecutor::new(rank, own.map(stand_in))
    }

    /// Runs all steps, and returns the peak of each if somebody counts.
    fn steps<C>(
        self,
        mut executor: RankExecutor<C>,
        transport: &impl Transport<Packet>,
        count: Option<Count>,
    ) -> Result<Vec<u64>, StepError>
    where
        C: StageCompute<Value = Packet, Input = Batch>,
    {
        let mut peaks = Vec::with_capacity(self.steps);
        for step in 0..self.steps {
            let (program, input) = (&*self.program, &self.batch);
            let epoch = Instant::now();
            let job = Job { step: step as u64, program, input, epoch, agreement: None };
            block_on(executor.step(&job, transport))?;
            if let Some(count) = &count {
                let most = count.most().map_err(|error| StepError::Setup(error.to_string()))?;
                let unknown = "the memory counter can't tell the most that was allocated at once";
                peaks.push(most.ok_or_else(|| StepError::Setup(unknown.to_owned()))?);
            }
        }
        Ok(peaks)
    }
}
