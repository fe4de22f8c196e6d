//! One worker: its thread, the commands that it takes, and what it answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use futures::executor::block_on;
use stovepipe_schedule::{Program, Rank, Stage};
use stovepipe_transport::Transport;

use crate::agreement::Agreement;
use crate::compute::StageCompute;
use crate::error::StepError;
use crate::executor::RankExecutor;
use crate::job::{Job, RankReport};
use crate::setup::RankSetup;

/// The outcome of a gather.
type Gathered = Result<Vec<Vec<u8>>, StepError>;

/// A rank of this process: its number, what it is made of, and its endpoint.
pub(crate) struct LocalRank<C: StageCompute> {
    pub(crate) rank: usize,
    pub(crate) setup: RankSetup<C>,
    pub(crate) transport: Arc<dyn Transport<C::Value>>,
}

/// Something that a worker is asked to do.
pub(crate) enum Command<C: StageCompute> {
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

/// The thread of a rank, seen from the thread that asks it to do things.
pub(crate) struct Worker<C: StageCompute> {
    pub(crate) rank: usize,
    commands: Option<mpsc::Sender<Command<C>>>,
    results: mpsc::Receiver<Result<RankReport<C::Output>, StepError>>,
    thread: Option<JoinHandle<()>>,
}

impl<C: StageCompute> Worker<C> {
    /// Starts the thread of a rank.
    pub(crate) fn spawn(
        LocalRank { rank, setup, transport }: LocalRank<C>,
    ) -> std::io::Result<Self> {
        let RankSetup { stages, thread, arrival_hook } = setup;
        let executor = RankExecutor::new(Rank::new(rank), stages).with_arrival_hook(arrival_hook);
        let (commands, inbox) = mpsc::channel();
        let (outbox, results) = mpsc::channel();
        let name = format!("stovepipe-{rank}");
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            thread.run(Box::new(move || work(executor, &*transport, &inbox, &outbox)));
        })?;
        Ok(Self { rank, commands: Some(commands), results, thread: Some(handle) })
    }

    /// Asks for something. Where the worker is gone, the answer says so.
    pub(crate) fn ask(&self, command: Command<C>) {
        if let Some(commands) = &self.commands {
            // A worker that is gone shows when its answer is missing.
            let _ = commands.send(command);
        }
    }

    /// Waits for the end of the step that it was asked for.
    pub(crate) fn result(&self) -> Result<RankReport<C::Output>, StepError> {
        self.results.recv().map_err(|_| self.gone())?
    }

    /// Lets it gather, and waits for the outcome.
    pub(crate) fn gather(&self, number: u64, bytes: Vec<u8>) -> Gathered {
        let (outcome, gathered) = mpsc::sync_channel(1);
        self.ask(Command::Gather { number, bytes, outcome });
        gathered.recv().map_err(|_| self.gone())?
    }

    /// Lets it run `visitor` on a stage, and waits for the result.
    pub(crate) fn visit<R: Send + 'static>(
        &self,
        stage: Stage,
        visitor: impl FnOnce(&mut C) -> R + Send + 'static,
    ) -> Result<R, StepError> {
        let (sender, result) = mpsc::sync_channel(1);
        let visitor = Box::new(move |compute: &mut C| {
            let result = catch_unwind(AssertUnwindSafe(|| visitor(compute)));
            // The asking side waits below.
            let _ = sender.send(result.ok());
        });
        self.ask(Command::Visit { stage, visitor });
        let visited = result.recv().map_err(|_| self.gone())?;
        visited.ok_or(StepError::Visitor { stage })
    }

    /// Lets the thread end, without waiting for it.
    pub(crate) fn dismiss(&mut self) {
        self.commands = None;
    }

    /// Waits for the end of the thread.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has already been reported.
            let _ = thread.join();
        }
    }

    fn gone(&self) -> StepError {
        StepError::WorkerGone { rank: Rank::new(self.rank) }
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
