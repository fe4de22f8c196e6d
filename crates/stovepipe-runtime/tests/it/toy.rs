//! A stage on plain numbers that can be told to fail anywhere. Values are small integers, so that
//! sums are exact in any order and results can be compared with `==`.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::HashMap;
use std::sync::{Arc, Once};

use stovepipe_runtime::{Begin, PlainThread, RankSetup, StageCompute, StepPhase, Workers};
use stovepipe_schedule::{Edges, MicroBatch, Plan, Program, Retention, Stage, StageRetention};

/// How a stage fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Error,
    Panic,
}

/// Where a stage fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) stage: usize,
    pub(crate) phase: StepPhase,
    pub(crate) micro_batch: Option<usize>,
    pub(crate) how: How,
}

/// A mini-batch: one number for each micro-batch.
pub(crate) struct Batch {
    pub(crate) samples: Vec<f64>,
    pub(crate) fault: Option<Fault>,
}

#[derive(Debug, thiserror::Error)]
#[error("the device is on fire")]
pub(crate) struct OnFire;

/// Adds up its inputs, multiplies by each weight in turn, and hands the result to every edge. The
/// loss is the sum of the last stage's outputs. `SPLITS` says whether it can split its backward.
pub(crate) struct Toy<const SPLITS: bool = false> {
    pub(crate) weights: Vec<f64>,
    pub(crate) edges: Edges,
    /// A stage that has the same first weight.
    pub(crate) partner: Option<Stage>,
    stage: usize,
    gradients: Vec<f64>,
    /// Added to the gradients by `W`.
    pending: HashMap<MicroBatch, Vec<f64>>,
    /// Inputs of the kept micro-batches, and those waiting for recomputation.
    kept: HashMap<MicroBatch, f64>,
    dropped: HashMap<MicroBatch, f64>,
    pub(crate) recomputed: usize,
    pub(crate) peak: usize,
    batch: Option<Arc<Batch>>,
    losses: Vec<(usize, f64)>,
}

impl<const SPLITS: bool> Toy<SPLITS> {
    pub(crate) fn new(stage: usize, edges: &Edges, weights: Vec<f64>) -> Self {
        Self {
            gradients: vec![0.0; weights.len()],
            pending: HashMap::new(),
            weights,
            edges: edges.clone(),
            partner: None,
            stage,
            kept: HashMap::new(),
            dropped: HashMap::new(),
            recomputed: 0,
            peak: 0,
            batch: None,
            losses: Vec::new(),
        }
    }

    /// The weights' gradients and the inputs'.
    fn differentiate(&mut self, m: MicroBatch, gradients: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
        let mut dy = if gradients.is_empty() { 1.0 } else { gradients.iter().sum() };
        let x = self.kept.remove(&m).expect("activations are there");
        let mut inputs = vec![x];
        for w in &self.weights {
            inputs.push(inputs[inputs.len() - 1] * w);
        }
        let mut weight_gradients = vec![0.0; self.weights.len()];
        for (layer, w) in self.weights.iter().enumerate().rev() {
            weight_gradients[layer] = dy * inputs[layer];
            dy *= w;
        }
        (weight_gradients, vec![dy; self.edges.incoming(Stage::new(self.stage)).count()])
    }

    fn accumulate(&mut self, weight_gradients: &[f64]) {
        for (sum, gradient) in self.gradients.iter_mut().zip(weight_gradients) {
            *sum += gradient;
        }
    }

    fn may_fail(&self, phase: StepPhase, micro_batch: Option<MicroBatch>) -> Result<(), OnFire> {
        let fault = self.batch.as_ref().and_then(|batch| batch.fault);
        let here = fault.filter(|fault| {
            fault.stage == self.stage
                && fault.phase == phase
                && fault.micro_batch == micro_batch.map(MicroBatch::index)
        });
        match here.map(|fault| fault.how) {
            Some(How::Error) => Err(OnFire),
            Some(How::Panic) => panic!("the stage fell over"),
            None => Ok(()),
        }
    }
}

impl<const SPLITS: bool> StageCompute for Toy<SPLITS> {
    const SPLITS_BACKWARD: bool = SPLITS;

    type Value = f64;
    type Input = Batch;
    type Output = usize;
    type Error = OnFire;

    fn begin(&mut self, begin: Begin<'_, Batch>) -> Result<(), OnFire> {
        self.batch = Some(Arc::clone(begin.input));
        assert_eq!(begin.stage.index(), self.stage);
        self.may_fail(StepPhase::Begin, None)
    }

    fn forward(
        &mut self,
        m: MicroBatch,
        inputs: Vec<f64>,
        retention: &StageRetention,
    ) -> Result<Vec<f64>, OnFire> {
        self.may_fail(StepPhase::Forward, Some(m))?;
        let batch = self.batch.as_ref().map(|batch| batch.samples[m.index()]);
        let x = if self.stage == 0 { batch.unwrap_or(f64::NAN) } else { inputs.iter().sum() };
        let store = if retention.recomputes() { &mut self.dropped } else { &mut self.kept };
        store.insert(m, x);
        self.peak = self.peak.max(self.kept.len());
        let y = self.weights.iter().fold(x, |x, w| x * w);
        let stage = Stage::new(self.stage);
        let edges = self.edges.outgoing(stage).count();
        if edges == 0 {
            self.losses.push((m.index(), y));
        }
        Ok(vec![y; edges])
    }

    fn recompute(&mut self, m: MicroBatch, _: &StageRetention) -> Result<(), OnFire> {
        self.may_fail(StepPhase::Recompute, Some(m))?;
        let x = self.dropped.remove(&m).expect("forward came first");
        self.kept.insert(m, x);
        self.recomputed += 1;
        Ok(())
    }

    fn backward(
        &mut self,
        m: MicroBatch,
        gradients: Vec<f64>,
        _: &StageRetention,
    ) -> Result<Vec<f64>, OnFire> {
        self.may_fail(StepPhase::Backward, Some(m))?;
        let (weight_gradients, input_gradients) = self.differentiate(m, gradients);
        self.accumulate(&weight_gradients);
        Ok(input_gradients)
    }

    fn backward_input(
        &mut self,
        m: MicroBatch,
        gradients: Vec<f64>,
        _: &StageRetention,
    ) -> Result<Vec<f64>, OnFire> {
        self.may_fail(StepPhase::BackwardInput, Some(m))?;
        let (weight_gradients, input_gradients) = self.differentiate(m, gradients);
        self.pending.insert(m, weight_gradients);
        Ok(input_gradients)
    }

    fn backward_weight(&mut self, m: MicroBatch) -> Result<(), OnFire> {
        self.may_fail(StepPhase::BackwardWeight, Some(m))?;
        let weight_gradients = self.pending.remove(&m).expect("its input came first");
        self.accumulate(&weight_gradients);
        Ok(())
    }

    fn share(&mut self) -> Result<Vec<(Stage, f64)>, OnFire> {
        self.may_fail(StepPhase::Share, None)?;
        Ok(self.partner.map(|partner| (partner, self.gradients[0])).into_iter().collect())
    }

    fn take_shared(&mut self, values: Vec<(Stage, f64)>) -> Result<(), OnFire> {
        assert!(values.iter().map(|(stage, _)| *stage).eq(self.partner));
        self.gradients[0] += values.iter().map(|(_, gradient)| gradient).sum::<f64>();
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<u8>, OnFire> {
        self.may_fail(StepPhase::Finish, None)?;
        self.losses.sort_by_key(|(m, _)| *m);
        Ok(self.losses.iter().flat_map(|(_, loss)| loss.to_le_bytes()).collect())
    }

    fn prepare(&mut self, _: &[Vec<u8>]) -> Result<(), OnFire> {
        self.may_fail(StepPhase::Prepare, None)
    }

    fn commit(&mut self) -> Result<(), OnFire> {
        self.may_fail(StepPhase::Update, None)?;
        for (w, gradient) in self.weights.iter_mut().zip(&mut self.gradients) {
            *w -= std::mem::take(gradient);
        }
        Ok(())
    }

    fn abandon(&mut self) {
        self.gradients.fill(0.0);
        self.pending.clear();
        self.kept.clear();
        self.dropped.clear();
        self.losses.clear();
        self.batch = None;
    }

    fn take_output(&mut self) -> usize {
        // An evaluation keeps nothing for a backward.
        self.kept.clear();
        self.losses.clear();
        self.batch = None;
        std::mem::take(&mut self.recomputed)
    }
}

/// Keeps quiet about panics of workers, which are part of a test; those of tests are still shown.
pub(crate) fn silence_worker_panics() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if !thread.name().is_some_and(|name| name.starts_with("stovepipe-")) {
                show(panic);
            }
        }));
    });
}

/// A pipeline of toys with these weights in each stage, laid out as the plan says.
pub(crate) fn pipeline(plan: &Plan, edges: &Edges, weights: &[Vec<f64>]) -> Workers<Toy> {
    pipeline_of(plan, edges, weights)
}

/// The same, of stages that may split their backwards.
pub(crate) fn pipeline_of<const SPLITS: bool>(
    plan: &Plan,
    edges: &Edges,
    weights: &[Vec<f64>],
) -> Workers<Toy<SPLITS>> {
    Workers::start(setups(plan, edges, weights)).expect("threads")
}

/// Each rank of such a pipeline, on a plain thread.
pub(crate) fn setups<const SPLITS: bool>(
    plan: &Plan,
    edges: &Edges,
    weights: &[Vec<f64>],
) -> Vec<RankSetup<Toy<SPLITS>>> {
    let toy = |&s: &Stage| (s, Toy::new(s.index(), edges, weights[s.index()].clone()));
    let ranks = (0..plan.ranks()).map(|rank| {
        let stages = plan.stages_of(rank).iter().map(toy).collect();
        RankSetup::new(stages, Box::new(PlainThread))
    });
    ranks.collect()
}

pub(crate) fn program(plan: &Plan, retention: &Retention) -> Arc<Program> {
    Arc::new(Program::lower(plan, &Edges::chain(plan.stages()), retention).expect("lowers"))
}

pub(crate) fn weights<const SPLITS: bool>(
    workers: &mut Workers<Toy<SPLITS>>,
    stages: usize,
) -> Vec<Vec<f64>> {
    Stage::first(stages)
        .map(|stage| workers.visit(stage, |toy| toy.weights.clone()).expect("the stage is there"))
        .collect()
}

pub(crate) fn batch(samples: &[f64]) -> Arc<Batch> {
    Arc::new(Batch { samples: samples.to_vec(), fault: None })
}

pub(crate) fn loss(reports: &[Vec<u8>]) -> f64 {
    let (numbers, _) = reports[reports.len() - 1].as_chunks::<8>();
    numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).sum()
}
