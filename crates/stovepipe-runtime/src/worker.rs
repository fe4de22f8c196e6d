//! One worker: its thread, the commands that it takes, and what it answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use futures::executor::block_on;
use stovepipe_schedule::{Program, Rank, Stage};
use stovepipe_transport::Transport;

use crate::agreement::Agreement;
use crate::compute::StageCompute;
use crate::error::{Cause, StepError};
use crate::executor::RankExecutor;
use crate::job::{Job, RankReport};
use crate::rank_thread::StartedThread;
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
    thread: StartedThread,
}

impl<C: StageCompute> Worker<C> {
    /// Starts the thread of a rank.
    pub(crate) fn spawn(
        LocalRank { rank, setup, transport }: LocalRank<C>,
    ) -> Result<Self, StepError> {
        let RankSetup { stages, thread, arrival_hook } = setup;
        let executor = RankExecutor::new(Rank::new(rank), stages).with_arrival_hook(arrival_hook);
        let (commands, inbox) = mpsc::channel();
        let (outbox, results) = mpsc::channel();
        let worker = move || work(executor, &*transport, &inbox, &outbox);
        let thread = StartedThread::spawn(Rank::new(rank), thread, worker)?;
        Ok(Self { rank, commands: Some(commands), results, thread })
    }

    /// Waits until it takes commands.
    pub(crate) fn wait_for_start(&mut self) -> Result<(), StepError> {
        self.thread.wait_for_start()
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
        self.thread.join();
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
    let rank = executor.rank();
    while let Ok(command) = inbox.recv() {
        match command {
            Command::Step { number, program, input, epoch, agreement } => {
                let (program, input, agreement) = (&*program, &input, agreement.as_deref());
                let job = Job { step: number, program, input, epoch, agreement };
                let step = || block_on(executor.step(&job, endpoint));
                let result = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|payload| {
                    // Stages panic without harm. This came from elsewhere, such as the drop of a
                    // value, and the other ranks still wait.
                    let cause = Cause::of_panic(payload.as_ref());
                    endpoint.abort(number, &format!("the worker of rank {rank} {cause}"));
                    endpoint.end_step(number);
                    Err(StepError::WorkerGone { rank })
                });
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
