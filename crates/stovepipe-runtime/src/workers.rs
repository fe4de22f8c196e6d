//! The ranks of a pipeline as threads of this process: all of them over in-process channels, or one
//! of them over a transport to other processes.

use std::sync::Arc;
use std::time::Instant;

use stovepipe_schedule::{Program, Stage, Timeline};
use stovepipe_transport::{InProcess, Transport};

use crate::agreement::Agreement;
use crate::compute::StageCompute;
use crate::error::StepError;
use crate::job::RankReport;
use crate::setup::RankSetup;
use crate::worker::{Command, LocalRank, Worker};

/// The outcome of a step on all ranks. Of ranks in other processes only reports are known.
#[derive(Debug)]
pub struct StepReport<O> {
    /// When every action ran, in seconds from the start of the step. Other processes' ranks have
    /// none.
    pub timeline: Timeline,
    /// The output of each stage of this process, in stage order.
    pub outputs: Vec<O>,
    /// The report of each stage before the vote, in stage order.
    pub reports: Vec<Vec<u8>>,
}

/// One thread for each rank of this process. Dropping it ends and joins them.
pub struct Workers<C: StageCompute> {
    workers: Vec<Worker<C>>,
    /// This process's stages, with the index of their worker.
    placement: Vec<(Stage, usize)>,
    ranks: usize,
    next_step: u64,
    poisoned: Option<String>,
    /// The program of the last step, with what ranks compare of it.
    compared: Option<(Arc<Program>, Agreement)>,
    /// Dropped after the threads have ended, on the thread that drops this. So a transport can tell
    /// whether that is because of a panic.
    transports: Vec<Arc<dyn Transport<C::Value>>>,
}

impl<C: StageCompute> Workers<C> {
    /// Starts a worker for each rank, in rank order.
    ///
    /// # Errors
    ///
    /// [`StepError::NoThread`] or [`StepError::NotStarted`], which name the rank.
    pub fn start(ranks: Vec<RankSetup<C>>) -> Result<Self, StepError> {
        let count = ranks.len();
        let endpoints = InProcess::group(count).into_iter().zip(ranks).enumerate();
        let ranks = endpoints.map(|(rank, (endpoint, setup))| {
            let transport = Arc::new(endpoint) as Arc<dyn Transport<_>>;
            LocalRank { rank, setup, transport }
        });
        Self::spawn(ranks.collect(), count)
    }

    /// Starts the worker of one rank. The others are reached over `transport`, in other processes
    /// as a rule. Before each step, ranks compare their programs and
    /// [agreement](StageCompute::agreement).
    ///
    /// # Errors
    ///
    /// [`StepError::NoThread`] or [`StepError::NotStarted`], which name the rank.
    pub fn join(
        setup: RankSetup<C>,
        transport: Arc<dyn Transport<C::Value>>,
    ) -> Result<Self, StepError> {
        let (rank, ranks) = (transport.rank(), transport.ranks());
        Self::spawn(vec![LocalRank { rank, setup, transport }], ranks)
    }

    fn spawn(local: Vec<LocalRank<C>>, ranks: usize) -> Result<Self, StepError> {
        // Where one can't be started, dropping this ends the others.
        let mut all = Self {
            workers: Vec::with_capacity(local.len()),
            placement: Vec::new(),
            ranks,
            next_step: 0,
            poisoned: None,
            compared: None,
            transports: Vec::with_capacity(local.len()),
        };
        for rank in local {
            let index = all.workers.len();
            all.placement.extend(rank.setup.stages.iter().map(|(stage, _)| (*stage, index)));
            all.transports.push(Arc::clone(&rank.transport));
            all.workers.push(Worker::spawn(rank)?);
        }
        all.placement.sort_unstable();
        all.workers.iter_mut().try_for_each(Worker::wait_for_start)?;
        Ok(all)
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

    /// Runs one step of `program` on `input` on all ranks, and waits for its end. Where ranks are
    /// processes, each has to call this.
    ///
    /// # Errors
    ///
    /// [`StepError`]: a failure that is no echo of another rank's; of several, that of the lowest
    /// rank. Unless it [poisons](StepError::poisons), nothing has changed and the next step may
    /// run.
    pub fn step(
        &mut self,
        program: &Arc<Program>,
        input: Arc<C::Input>,
    ) -> Result<StepReport<C::Output>, StepError> {
        self.check(program)?;
        let agreement = self.is_spread().then(|| Arc::new(self.agreement(program, &input)));
        let number = self.number();
        let epoch = Instant::now();
        for worker in &self.workers {
            let (program, input, agreement) =
                (Arc::clone(program), Arc::clone(&input), agreement.clone());
            worker.ask(Command::Step { number, program, input, epoch, agreement });
        }
        let mut reports = Vec::with_capacity(self.workers.len());
        let mut failures = Vec::new();
        for worker in &self.workers {
            match worker.result() {
                Ok(report) => reports.push((worker.rank, report)),
                Err(error) => failures.push(error),
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

    /// Gathers `bytes` from every process, and returns all contributions in the order of their
    /// ranks. A pipeline within one process gets its own.
    ///
    /// # Errors
    ///
    /// [`StepError`], as of a step.
    pub fn gather(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, StepError> {
        let number = self.number();
        match self.workers.first().filter(|_| self.is_spread()) {
            Some(worker) => worker.gather(number, bytes),
            None => Ok(vec![bytes]),
        }
    }

    /// Runs `visitor` on a stage, on the thread of its worker, and waits for the result.
    ///
    /// # Errors
    ///
    /// [`StepError::NoStage`] if this process has no such stage, [`StepError::Visitor`] if the
    /// visitor panicked, [`StepError::WorkerGone`] if its worker is gone.
    pub fn visit<R: Send + 'static>(
        &mut self,
        stage: Stage,
        visitor: impl FnOnce(&mut C) -> R + Send + 'static,
    ) -> Result<R, StepError> {
        match self.placement.binary_search_by_key(&stage, |(stage, _)| *stage) {
            Ok(index) => self.workers[self.placement[index].1].visit(stage, visitor),
            Err(_) => Err(StepError::NoStage { stage }),
        }
    }

    /// Refuses if an update failed half-way, so that stages may be out of step.
    ///
    /// # Errors
    ///
    /// [`StepError::Unusable`].
    pub fn check_usable(&self) -> Result<(), StepError> {
        match &self.poisoned {
            Some(reason) => Err(StepError::Unusable { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a step that can't run at all.
    fn check(&self, program: &Program) -> Result<(), StepError> {
        self.check_usable()?;
        let (found, ranks) = (program.plan().ranks(), self.ranks);
        if found != ranks {
            return Err(StepError::Ranks { program: found, pipeline: ranks });
        }
        Ok(())
    }

    /// The number of the next step. Failed steps use up theirs too, so that stray messages can't be
    /// taken for new ones.
    fn number(&mut self) -> u64 {
        self.next_step += 1;
        self.next_step - 1
    }

    /// The facts that ranks compare before a step.
    fn agreement(&mut self, program: &Arc<Program>, input: &C::Input) -> Agreement {
        let known = self.compared.take().filter(|(known, _)| Arc::ptr_eq(known, program));
        let (_, of_program) = self
            .compared
            .insert(known.unwrap_or_else(|| (Arc::clone(program), Agreement::of_program(program))));
        C::agreement(input).and(of_program.clone())
    }
}

impl<C: StageCompute> Drop for Workers<C> {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(Worker::dismiss);
        self.workers.iter_mut().for_each(Worker::join);
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
