//! All ranks of a pipeline as threads of this process, over in-process channels.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use futures::executor::block_on;
use stovepipe_schedule::{Program, Rank, Stage, Timeline};
use stovepipe_transport::InProcess;

use crate::{Job, RankExecutor, RankReport, StageCompute, StepError};

/// Where a rank's worker runs: it may bring a thread pool or a device context.
pub trait Host: Send {
    /// Runs the worker to its end. Called on the rank's own thread, which ends when it returns;
    /// threads of the host should have ended by then too.
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>);
}

/// Runs the worker right on the rank's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadHost;

impl Host for ThreadHost {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        worker();
    }
}

/// The stages of one rank, and where they run.
pub struct RankSetup<C> {
    /// The stages, in any order.
    pub stages: Vec<(Stage, C)>,
    /// Where they run.
    pub host: Box<dyn Host>,
}

/// What a step did, over all ranks.
#[derive(Debug)]
pub struct StepReport<O> {
    /// When every action ran, in seconds from the start of the step.
    pub timeline: Timeline,
    /// What each stage handed back, in stage order.
    pub outputs: Vec<O>,
    /// What each stage reported before the vote, in stage order.
    pub reports: Vec<Vec<u8>>,
}

enum Command<C: StageCompute> {
    Step { number: u64, program: Arc<Program>, input: Arc<C::Input>, epoch: Instant },
    Visit { stage: Stage, visitor: Box<dyn FnOnce(&mut C) + Send> },
}

struct Worker<C: StageCompute> {
    commands: Option<mpsc::Sender<Command<C>>>,
    results: mpsc::Receiver<Result<RankReport<C::Output>, StepError>>,
    thread: Option<JoinHandle<()>>,
}

/// One thread for each rank. Dropping it ends and joins them.
pub struct Workers<C: StageCompute> {
    workers: Vec<Worker<C>>,
    placement: Vec<(Stage, usize)>,
    next_step: u64,
    poisoned: Option<String>,
}

impl<C: StageCompute> Workers<C> {
    /// Starts a worker for each rank, in rank order.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(ranks: Vec<RankSetup<C>>) -> std::io::Result<Self> {
        let mut workers = Vec::with_capacity(ranks.len());
        let mut placement = Vec::new();
        let endpoints = InProcess::group(ranks.len());
        for (rank, (setup, endpoint)) in ranks.into_iter().zip(endpoints).enumerate() {
            placement.extend(setup.stages.iter().map(|(stage, _)| (*stage, rank)));
            let executor = RankExecutor::new(Rank::new(rank), setup.stages);
            let (commands, inbox) = mpsc::channel();
            let (outbox, results) = mpsc::channel();
            let host = setup.host;
            let thread =
                std::thread::Builder::new().name(format!("stovepipe-{rank}")).spawn(move || {
                    host.run(Box::new(move || work(executor, &endpoint, &inbox, &outbox)));
                })?;
            workers.push(Worker { commands: Some(commands), results, thread: Some(thread) });
        }
        placement.sort_unstable();
        Ok(Self { workers, placement, next_step: 0, poisoned: None })
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.workers.len()
    }

    /// Runs one step of `program` on `input` on all ranks, and waits for its end.
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
        if program.plan().ranks() != self.workers.len() {
            return Err(StepError::Setup(format!(
                "the program has {} ranks, the pipeline {}",
                program.plan().ranks(),
                self.workers.len()
            )));
        }
        // Failed steps use up their number too, so that stray messages can't be taken for new ones.
        let number = self.next_step;
        self.next_step += 1;
        let epoch = Instant::now();
        for worker in &self.workers {
            let (program, input) = (Arc::clone(program), Arc::clone(&input));
            // A worker that is gone shows when its result is missing.
            let _ = worker.command(Command::Step { number, program, input, epoch });
        }
        let mut reports = Vec::with_capacity(self.workers.len());
        let mut failures = Vec::new();
        for (rank, worker) in self.workers.iter().enumerate() {
            match worker.results.recv() {
                Ok(Ok(report)) => reports.push(report),
                Ok(Err(error)) => failures.push(error),
                Err(_) => failures.push(StepError::WorkerGone { rank: Rank::new(rank) }),
            }
        }
        if failures.is_empty() {
            return Ok(merge(reports));
        }
        if let Some(error) = failures.iter().find(|e| e.poisons()) {
            self.poisoned = Some(error.to_string());
        }
        let first = failures.iter().position(|e| !e.is_echo()).unwrap_or(0);
        Err(failures.swap_remove(first))
    }

    /// Runs `visitor` on a stage, on the thread of its worker, and waits for the result.
    ///
    /// # Errors
    ///
    /// [`StepError::Setup`] if there is no such stage or the visitor panicked,
    /// [`StepError::WorkerGone`] if its worker is gone.
    pub fn visit<R: Send + 'static>(
        &mut self,
        stage: Stage,
        visitor: impl FnOnce(&mut C) -> R + Send + 'static,
    ) -> Result<R, StepError> {
        let Ok(place) = self.placement.binary_search_by_key(&stage, |(stage, _)| *stage) else {
            return Err(StepError::Setup(format!("there is no stage {stage}")));
        };
        let rank = self.placement[place].1;
        let (sender, result) = mpsc::sync_channel(1);
        let visitor = Box::new(move |compute: &mut C| {
            let result = catch_unwind(AssertUnwindSafe(|| visitor(compute)));
            // The asking side waits below.
            let _ = sender.send(result.ok());
        });
        let gone = || StepError::WorkerGone { rank: Rank::new(rank) };
        self.workers[rank].command(Command::Visit { stage, visitor }).map_err(|()| gone())?;
        let visited = result.recv().map_err(|_| gone())?;
        visited.ok_or_else(|| StepError::Setup(format!("the visitor of stage {stage} panicked")))
    }
}

impl<C: StageCompute> Worker<C> {
    fn command(&self, command: Command<C>) -> Result<(), ()> {
        self.commands.as_ref().ok_or(())?.send(command).map_err(drop)
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
    endpoint: &InProcess<C::Value>,
    inbox: &mpsc::Receiver<Command<C>>,
    outbox: &mpsc::Sender<Result<RankReport<C::Output>, StepError>>,
) {
    while let Ok(command) = inbox.recv() {
        match command {
            Command::Step { number, program, input, epoch } => {
                let job = Job { step: number, program: &program, input: &input, epoch };
                let result = block_on(executor.step(&job, endpoint));
                if outbox.send(result).is_err() {
                    return;
                }
            }
            Command::Visit { stage, visitor } => {
                if let Some(compute) = executor.stage_mut(stage) {
                    visitor(compute);
                }
            }
        }
    }
}

fn merge<O>(reports: Vec<RankReport<O>>) -> StepReport<O> {
    let gathered = reports.first().map(|r| r.reports.clone()).unwrap_or_default();
    let mut spans = Vec::with_capacity(reports.len());
    let mut updates = Vec::with_capacity(reports.len());
    let mut outputs = Vec::new();
    for report in reports {
        spans.push(report.spans);
        updates.push(report.update);
        outputs.extend(report.outputs);
    }
    outputs.sort_by_key(|(stage, _)| *stage);
    StepReport {
        timeline: Timeline::new(spans, updates),
        outputs: outputs.into_iter().map(|(_, output)| output).collect(),
        reports: gathered,
    }
}
