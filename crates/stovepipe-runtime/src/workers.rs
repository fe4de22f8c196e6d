//! The ranks of a pipeline as threads of this process: all of them over in-process channels, or one of
//! them over a transport to other processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use futures::executor::block_on;
use stovepipe_schedule::{Program, Rank, Stage, Timeline};
use stovepipe_transport::{InProcess, Transport};

use crate::{Agreement, Job, RankExecutor, RankReport, StageCompute, StepError};

/// Where a rank's worker runs: it may bring a thread pool or a device context.
pub trait RankThread: Send {
    /// Runs the worker to its end. Called on the rank's own thread, which ends when it returns;
    /// threads of the host should have ended by then too.
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>);
}

/// Runs the worker right on the rank's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlainThread;

impl RankThread for PlainThread {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        worker();
    }
}

/// The stages of one rank, and where they run.
pub struct RankSetup<C> {
    /// The stages, in any order.
    pub stages: Vec<(Stage, C)>,
    /// Where they run.
    pub thread: Box<dyn RankThread>,
}

/// What a step did, over all ranks. Of ranks in other processes only reports are known.
#[derive(Debug)]
pub struct StepReport<O> {
    /// When every action ran, in seconds from the start of the step. Other processes' ranks have none.
    pub timeline: Timeline,
    /// What each stage of this process handed back, in stage order.
    pub outputs: Vec<O>,
    /// What each stage reported before the vote, in stage order.
    pub reports: Vec<Vec<u8>>,
}

/// The outcome of a gather.
type Gathered = Result<Vec<Vec<u8>>, StepError>;

enum Command<C: StageCompute> {
    Step {
        number: u64,
        program: Arc<Program>,
        input: Arc<C::Input>,
        epoch: Instant,
        agreement: Option<Arc<Agreement>>,
    },
    Gather {
        number: u64,
        bytes: Vec<u8>,
        outcome: mpsc::SyncSender<Gathered>,
    },
    Visit {
        stage: Stage,
        visitor: Box<dyn FnOnce(&mut C) + Send>,
    },
}

struct Worker<C: StageCompute> {
    rank: usize,
    commands: Option<mpsc::Sender<Command<C>>>,
    results: mpsc::Receiver<Result<RankReport<C::Output>, StepError>>,
    thread: Option<JoinHandle<()>>,
}

/// A rank's number, stages and endpoint.
type Place<C> = ((usize, RankSetup<C>), Arc<dyn Transport<<C as StageCompute>::Value>>);

/// One thread for each rank of this process. Dropping it ends and joins them.
pub struct Workers<C: StageCompute> {
    workers: Vec<Worker<C>>,
    /// This process's stages, with the place of their worker.
    placement: Vec<(Stage, usize)>,
    ranks: usize,
    next_step: u64,
    poisoned: Option<String>,
    /// The program of the last step, with what ranks compare of it.
    compared: Option<(Arc<Program>, Agreement)>,
    /// Dropped after the threads have ended, on the thread that drops this: so that a transport can tell
    /// whether that is because of a panic.
    _transports: Vec<Arc<dyn Transport<C::Value>>>,
}

impl<C: StageCompute> Workers<C> {
    /// Starts a worker for each rank, in rank order.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(ranks: Vec<RankSetup<C>>) -> std::io::Result<Self> {
        let count = ranks.len();
        let endpoints = InProcess::group(count).into_iter();
        let transports = endpoints.map(|endpoint| Arc::new(endpoint) as Arc<dyn Transport<_>>);
        Self::spawn(ranks.into_iter().enumerate().zip(transports).collect(), count)
    }

    /// Starts the worker of one rank; the others are reached over `transport`, in other processes as a rule.
    /// Before each step, ranks compare their programs and [agreement](StageCompute::agreement).
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn join(
        setup: RankSetup<C>,
        transport: Arc<dyn Transport<C::Value>>,
    ) -> std::io::Result<Self> {
        let (rank, ranks) = (transport.rank(), transport.ranks());
        Self::spawn(vec![((rank, setup), transport)], ranks)
    }

    fn spawn(setups: Vec<Place<C>>, ranks: usize) -> std::io::Result<Self> {
        let mut workers = Vec::with_capacity(setups.len());
        let mut placement = Vec::new();
        let mut transports = Vec::with_capacity(setups.len());
        for ((rank, setup), transport) in setups {
            placement.extend(setup.stages.iter().map(|(stage, _)| (*stage, workers.len())));
            let executor = RankExecutor::new(Rank::new(rank), setup.stages);
            let (commands, inbox) = mpsc::channel();
            let (outbox, results) = mpsc::channel();
            let (thread, endpoint) = (setup.thread, Arc::clone(&transport));
            let thread =
                std::thread::Builder::new().name(format!("stovepipe-{rank}")).spawn(move || {
                    thread.run(Box::new(move || work(executor, &*endpoint, &inbox, &outbox)));
                })?;
            workers.push(Worker { rank, commands: Some(commands), results, thread: Some(thread) });
            transports.push(transport);
        }
        placement.sort_unstable();
        Ok(Self {
            workers,
            placement,
            ranks,
            next_step: 0,
            poisoned: None,
            compared: None,
            _transports: transports,
        })
    }

    /// Whether there are ranks in other processes.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.workers.len() < self.ranks
    }

    /// Whether a stage is on a rank of this process.
    #[must_use]
    pub fn holds(&self, stage: Stage) -> bool {
        self.placement.binary_search_by_key(&stage, |(stage, _)| *stage).is_ok()
    }

    /// Number of ranks, in all processes.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Runs one step of `program` on `input` on all ranks, and waits for its end. Where ranks are processes,
    /// each has to call this.
    ///
    /// # Errors
    ///
    /// [`StepError`]: a failure that is no echo of another rank's; of several, that of the lowest rank. Unless it
    /// [poisons](StepError::poisons), nothing has changed and the next step may run.
    pub fn step(
        &mut self,
        program: &Arc<Program>,
        input: Arc<C::Input>,
    ) -> Result<StepReport<C::Output>, StepError> {
        if let Some(reason) = &self.poisoned {
            return Err(StepError::Unusable { reason: reason.clone() });
        }
        if program.plan().ranks() != self.ranks {
            return Err(StepError::Setup(format!(
                "the program has {} ranks, the pipeline {}",
                program.plan().ranks(),
                self.ranks
            )));
        }
        let agreement = self.is_spread().then(|| Arc::new(self.agreement(program, &input)));
        let number = self.number();
        let epoch = Instant::now();
        for worker in &self.workers {
            let (program, input, agreement) =
                (Arc::clone(program), Arc::clone(&input), agreement.clone());
            // A worker that is gone shows when its result is missing.
            let _ = worker.command(Command::Step { number, program, input, epoch, agreement });
        }
        let mut reports = Vec::with_capacity(self.workers.len());
        let mut failures = Vec::new();
        for worker in &self.workers {
            match worker.results.recv() {
                Ok(Ok(report)) => reports.push((worker.rank, report)),
                Ok(Err(error)) => failures.push(error),
                Err(_) => failures.push(worker.gone()),
            }
        }
        if failures.is_empty() {
            return Ok(merge(reports, self.ranks));
        }
        if let Some(error) = failures.iter().find(|e| e.poisons()) {
            self.poisoned = Some(error.to_string());
        }
        let first = failures.iter().position(|e| !e.is_echo()).unwrap_or(0);
        Err(failures.swap_remove(first))
    }

    /// Every process contributes `bytes`, and gets all contributions in the order of their ranks; a pipeline
    /// within one process gets its own.
    ///
    /// # Errors
    ///
    /// [`StepError`], as of a step.
    pub fn gather(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, StepError> {
        let number = self.number();
        let Some(worker) = self.workers.first().filter(|_| self.is_spread()) else {
            return Ok(vec![bytes]);
        };
        let (outcome, gathered) = mpsc::sync_channel(1);
        let gone = |()| worker.gone();
        worker.command(Command::Gather { number, bytes, outcome }).map_err(gone)?;
        gathered.recv().map_err(|_| worker.gone())?
    }

    /// The number of the next step. Failed steps use up theirs too, so that stray messages can't be taken
    /// for new ones.
    fn number(&mut self) -> u64 {
        self.next_step += 1;
        self.next_step - 1
    }

    /// What ranks compare before a step.
    fn agreement(&mut self, program: &Arc<Program>, input: &C::Input) -> Agreement {
        let known = self.compared.take().filter(|(known, _)| Arc::ptr_eq(known, program));
        let (_, of_program) = self
            .compared
            .insert(known.unwrap_or_else(|| (Arc::clone(program), Agreement::of_program(program))));
        C::agreement(input).and(of_program.clone())
    }

    /// Runs `visitor` on a stage, on the thread of its worker, and waits for the result.
    ///
    /// # Errors
    ///
    /// [`StepError::Setup`] if this process has no such stage or the visitor panicked,
    /// [`StepError::WorkerGone`] if its worker is gone.
    pub fn visit<R: Send + 'static>(
        &mut self,
        stage: Stage,
        visitor: impl FnOnce(&mut C) -> R + Send + 'static,
    ) -> Result<R, StepError> {
        let Ok(place) = self.placement.binary_search_by_key(&stage, |(stage, _)| *stage) else {
            return Err(StepError::Setup(format!("there is no stage {stage}")));
        };
        let worker = &self.workers[self.placement[place].1];
        let (sender, result) = mpsc::sync_channel(1);
        let visitor = Box::new(move |compute: &mut C| {
            let result = catch_unwind(AssertUnwindSafe(|| visitor(compute)));
            // The asking side waits below.
            let _ = sender.send(result.ok());
        });
        worker.command(Command::Visit { stage, visitor }).map_err(|()| worker.gone())?;
        let visited = result.recv().map_err(|_| worker.gone())?;
        visited.ok_or_else(|| StepError::Setup(format!("the visitor of stage {stage} panicked")))
    }
}

impl<C: StageCompute> Worker<C> {
    fn command(&self, command: Command<C>) -> Result<(), ()> {
        self.commands.as_ref().ok_or(())?.send(command).map_err(drop)
    }

    fn gone(&self) -> StepError {
        StepError::WorkerGone { rank: Rank::new(self.rank) }
    }
}

impl<C: StageCompute> Drop for Workers<C> {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.commands = None;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // A worker that panicked has already been reported.
                let _ = thread.join();
            }
        }
    }
}

/// The life of a worker: commands until the other side hangs up.
fn work<C: StageCompute>(
    mut executor: RankExecutor<C>,
    endpoint: &dyn Transport<C::Value>,
    inbox: &mpsc::Receiver<Command<C>>,
    outbox: &mpsc::Sender<Result<RankReport<C::Output>, StepError>>,
) {
    while let Ok(command) = inbox.recv() {
        match command {
            Command::Step { number, program, input, epoch, agreement } => {
                let (program, input, agreement) = (&*program, &input, agreement.as_deref());
                let job = Job { step: number, program, input, epoch, agreement };
                let result = block_on(executor.step(&job, endpoint));
                if outbox.send(result).is_err() {
                    return;
                }
            }
            Command::Gather { number, bytes, outcome } => {
                // The asking side waits for it.
                let _ = outcome.send(block_on(executor.gather(number, bytes, endpoint)));
            }
            Command::Visit { stage, visitor } => {
                if let Some(compute) = executor.stage_mut(stage) {
                    visitor(compute);
                }
            }
        }
    }
}

fn merge<O>(reports: Vec<(usize, RankReport<O>)>, ranks: usize) -> StepReport<O> {
    let gathered = reports.first().map(|(_, r)| r.reports.clone()).unwrap_or_default();
    let mut spans = vec![Vec::new(); ranks];
    let mut updates = vec![None; ranks];
    let mut outputs = Vec::new();
    for (rank, report) in reports {
        spans[rank] = report.spans;
        updates[rank] = report.update;
        outputs.extend(report.outputs);
    }
    outputs.sort_by_key(|(stage, _)| *stage);
    StepReport {
        timeline: Timeline::new(spans, updates),
        outputs: outputs.into_iter().map(|(_, output)| output).collect(),
        reports: gathered,
    }
}
