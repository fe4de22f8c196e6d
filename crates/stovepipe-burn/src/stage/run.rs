//! What a stage does with a micro-batch: forwards, segment by segment where activations are dropped, the
//! loss behind the last layer, backwards, and rebuilding what was dropped.

use std::ops::Range;
use std::sync::Arc;

use stovepipe_schedule::StageRetention;

use crate::autodiff::layer_run::LayerRun;
use crate::autodiff::loss_tape::LossTape;
use crate::autodiff::tape::{Backwarded, Forward, Forwarded, free_abandoned};
use crate::error::StageError;
use crate::layer::context::{ForwardKey, Pass, SkipValues};
use crate::loss::LossSum;
use crate::loss::erasure::wide;
use crate::stage::batch::Task;
use crate::stage::burn_stage::BurnStage;
use crate::stage::routes::{pack, unpack};
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};

impl BurnStage {
    /// Runs a micro-batch forward, and returns what goes along the stage's outgoing edges.
    pub(super) fn run_forward(
        &mut self,
        m: usize,
        inputs: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let input = self.input(m, inputs)?.into_values();
        let mut values = if batch.task.trains() {
            self.run_segments(m, input, retention)?
        } else {
            self.run_layers(m, 0..self.layers.len(), input, Pass::Evaluate, false)?
        };
        // What a segment that was dropped makes of the loss comes when it is rebuilt.
        if self.is_last && batch.task.trains() {
            if retention.dropped().last().is_none_or(|last| last.end < self.layers.len()) {
                self.run_loss(m, std::mem::take(&mut values), true)?;
            }
        } else if self.is_last && matches!(batch.task, Task::Predict) {
            let output = Packet::of(wide(&std::mem::take(&mut values)));
            self.current()?.predictions.insert(m, output);
        } else if self.is_last {
            self.run_loss(m, std::mem::take(&mut values), false)?;
        }
        let value = (!self.is_last).then(|| Packet::of(values));
        let routes = self.routes.outgoing.clone();
        Ok(pack(m, value, routes, 0, &mut self.current()?.skip_values))
    }

    /// The stage's input for a micro-batch, on its device; what arrived on skip connections is put aside.
    fn input(&mut self, m: usize, arrived: Vec<Packet>) -> Result<Packet, StageError> {
        let arrived = self.receive_all(arrived)?;
        let input = if self.is_first {
            let input = self.current()?.batch.inputs.get(m).cloned();
            input.map(|input| self.receive(input)).transpose()?
        } else {
            let routes = self.routes.incoming.clone();
            let chain = routes.len().saturating_sub(1);
            unpack(m, arrived, routes, chain, &mut self.current()?.skip_values)
        };
        input.ok_or_else(|| self.gone(0))
    }

    /// Runs all layers in training: with tapes, except in the segments that are dropped.
    fn run_segments(
        &mut self,
        m: usize,
        mut values: Vec<Box<dyn Part>>,
        retention: &StageRetention,
    ) -> Result<Vec<Box<dyn Part>>, StageError> {
        let mut next = 0;
        for segment in retention.dropped().iter().cloned() {
            values = self.run_layers(m, next..segment.start, values, Pass::Train, true)?;
            self.current()?.kept_inputs.insert((m, segment.start), copied(&values));
            next = segment.end;
            values = self.run_layers(m, segment, values, Pass::Train, false)?;
        }
        if !retention.dropped().is_empty() {
            free_abandoned(&self.device);
        }
        self.run_layers(m, next..self.layers.len(), values, Pass::Train, true)
    }

    /// Runs layers `range` on `values`; with tapes or without.
    fn run_layers(
        &mut self,
        m: usize,
        range: Range<usize>,
        mut values: Vec<Box<dyn Part>>,
        pass: Pass,
        taped: bool,
    ) -> Result<Vec<Box<dyn Part>>, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        let seed = self.settings.seed;
        let run = LayerRun {
            backend: &*Arc::clone(&self.settings.backend),
            device: &self.device.clone(),
            pass,
            key: ForwardKey { seed, updates: batch.updates, micro_batch: m },
            samples: batch.samples[m].clone(),
            side: batch.side.get(m),
        };
        for index in range {
            let is_model_input = self.is_first && index == 0;
            let mode = match pass {
                Pass::Evaluate => Forward::Evaluate,
                _ if taped => Forward::Taped { input_gradient: !is_model_input },
                _ => Forward::Untaped,
            };
            let current = self.current.as_mut().ok_or_else(|| StageError::no_step(""))?;
            let pop = |skip: &str| {
                let key = (m, skip.to_owned());
                match pass {
                    // Without a backward nobody needs it again.
                    Pass::Evaluate => current.skip_values.remove(&key),
                    _ => current.skip_values.get(&key).cloned(),
                }
            };
            let Forwarded { outputs, tape, loss, stashed, observations } =
                run.forward(&mut *self.layers[index], values, mode, pop)?;
            if pass == Pass::Train && !observations.is_empty() {
                current.observed.insert((index, m), observations);
            }
            if pass != Pass::Recompute {
                current.skip_values.extend(stashed.into_iter().map(|(skip, v)| ((m, skip), v)));
            }
            if let Some(tape) = tape {
                current.tapes.insert((m, index), tape);
            }
            if let Some(loss) = loss.filter(|_| pass != Pass::Recompute) {
                current.added.insert((index, m), loss);
            }
            values = outputs;
        }
        Ok(values)
    }

    /// The loss of a micro-batch; with a tape if a backward follows.
    fn run_loss(
        &mut self,
        m: usize,
        outputs: Vec<Box<dyn Part>>,
        taped: bool,
    ) -> Result<(), StageError> {
        let loss = self.loss.clone().ok_or(StageError::NoTarget)?;
        let metrics = Arc::clone(&self.settings.metrics);
        let target = self.current()?.batch.targets.get(m).cloned().ok_or(StageError::NoTarget)?;
        let target = self.receive(target)?;
        let current = self.current()?;
        for (number, metric) in metrics.iter().enumerate() {
            let LossSum { sum, weight } = metric(wide(&outputs), target.clone())?;
            current.metrics.insert((number, m), (sum, weight));
        }
        let result = if taped {
            let (tape, result) = LossTape::record(&*loss, outputs, target)?;
            current.loss_tapes.insert(m, tape);
            result
        } else {
            loss(wide(&outputs), target)?
        };
        let sum = if taped { result.sum.inner() } else { result.sum };
        current.losses.insert(m, (sum, result.weight.inner()));
        Ok(())
    }

    /// Rebuilds the activations of a dropped segment from its kept input.
    pub(super) fn rebuild(&mut self, m: usize, segment: Range<usize>) -> Result<(), StageError> {
        let inputs = self.current()?.kept_inputs.remove(&(m, segment.start));
        let inputs = inputs.ok_or_else(|| self.gone(segment.start))?;
        let ends_model = self.is_last && segment.end == self.layers.len();
        let outputs = self.run_layers(m, segment, inputs, Pass::Recompute, true)?;
        if ends_model { self.run_loss(m, outputs, true) } else { Ok(()) }
    }

    /// Where the tape of `layer` is missing, rebuilds the segment that it belongs to.
    fn ensure_tape(
        &mut self,
        m: usize,
        layer: usize,
        retention: &StageRetention,
    ) -> Result<(), StageError> {
        if self.current()?.tapes.contains_key(&(m, layer)) {
            return Ok(());
        }
        let segment = retention.dropped().iter().find(|segment| segment.contains(&layer));
        let segment = segment.cloned().ok_or_else(|| self.gone(layer))?;
        self.rebuild(m, segment)
    }

    /// Runs a micro-batch backward, and returns what goes back along the stage's incoming edges.
    pub(super) fn run_backward(
        &mut self,
        m: usize,
        gradients: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let last = self.layers.len() - 1;
        let scale = self.current()?.batch.scale;
        self.ensure_tape(m, last, retention)?;
        let mut flowing = if self.is_last {
            let tape = self.current()?.loss_tapes.remove(&m);
            tape.ok_or_else(|| self.gone(last))?.backward(scale)
        } else {
            let (gradients, routes) = (self.receive_all(gradients)?, self.routes.outgoing.clone());
            let gradient = unpack(m, gradients, routes, 0, &mut self.current()?.skip_gradients);
            gradient.ok_or_else(|| self.gone(last))?.into_gradients()
        };
        for layer in (0..=last).rev() {
            self.ensure_tape(m, layer, retention)?;
            let tape = self.current()?.tapes.remove(&(m, layer));
            let tape = tape.ok_or_else(|| self.gone(layer))?;
            let current = self.current()?;
            let mut stashed = SkipValues::new();
            for name in tape.stashed() {
                let gradient = current.skip_gradients.remove(&(m, name.clone()));
                stashed.extend(gradient.map(|gradient| (name.clone(), gradient)));
            }
            let Backwarded { inputs, popped } =
                self.layers[layer].backward(tape, flowing, stashed, scale)?;
            let current = self.current()?;
            for (name, gradient) in popped {
                current.skip_values.remove(&(m, name.clone()));
                current.skip_gradients.insert((m, name), gradient);
            }
            flowing = inputs;
        }
        let gradient = (!self.is_first).then(|| Packet::gradients(flowing));
        let routes = self.routes.incoming.clone();
        let chain = routes.len().saturating_sub(1);
        Ok(pack(m, gradient, routes, chain, &mut self.current()?.skip_gradients))
    }
}
