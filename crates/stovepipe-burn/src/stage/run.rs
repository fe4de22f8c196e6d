//! The way of a micro-batch through a stage: forward, rebuilding of dropped segments, backward.
//!
//! Here is a stage of four layers whose segment of layers 1 and 2 is dropped. The loss is there
//! on the last stage only.
//!
//! ```text
//!  layer           0           1            2          3       loss
//!                kept      |-- dropped segment --|   kept
//!
//!  forward  1 -> 2 tape -> 3 no tape -> 3 no tape -> 2 tape -> 4 -> 5
//!                          | input kept
//!  rebuild                 6 tape ----> 6 tape
//!  backward 9 <- 8 <------ 8 <--------- 8 <--------- 8 <------ 7
//! ```
//!
//! 1. The input arrives along the chain, or comes out of the mini-batch on the first stage.
//!    Skip values that arrive are put aside.
//! 2. Layers that are kept run with a tape.
//! 3. Layers of a dropped segment run without one, and only the segment's input is kept.
//! 4. On the last stage the loss is computed, with a tape. Where the last layer is in a dropped
//!    segment, that waits until the segment is rebuilt.
//! 5. The output and the skip values that later stages pop go along the outgoing edges.
//! 6. A dropped segment runs again from its kept input, this time with a tape. The last one
//!    does so when the plan says `R`; the others, or all where there is no `R`, when their
//!    backward is due.
//! 7. The gradient of the output comes from the loss, or along the chain from the next stage.
//!    Gradients of skip values that arrive are put aside.
//! 8. Layers run backward, the last one first, and each consumes its tape. A layer takes the
//!    gradients of what it stashed, and puts aside those of what it popped.
//! 9. The gradient of the input and those of skip values that earlier stages stashed go back
//!    along the incoming edges.
//!
//! Without a backward there are no tapes: all layers run as in 3, keep nothing, and the loss or
//! the prediction follows. In training that holds for the layers in front of the first one that
//! trains: nobody asks for their gradients, so that what goes back to them is empty.

use std::ops::Range;
use std::sync::Arc;

use stovepipe_schedule::StageRetention;

use crate::autodiff::backward::run_backward;
use crate::autodiff::layer_run::LayerRun;
use crate::autodiff::loss_tape::LossTape;
use crate::autodiff::tape::{Backwarded, Entry, Forward, Forwarded, Tape, free_abandoned};
use crate::error::stage::StageError;
use crate::layer::context::{ForwardKey, Pass, SkipValues};
use crate::loss::LossSum;
use crate::loss::erasure::wide;
use crate::stage::batch::Task;
use crate::stage::burn_stage::BurnStage;
use crate::stage::routes::{pack, unpack};
use crate::stage::step::StageStep;
use crate::value::packet::Packet;
use crate::value::part::{Part, copied};

/// The most parameters of layers that share a tape: their gradients take 1.25 MiB.
const JOINED_PARAMETERS: usize = 320 << 10;

impl BurnStage {
    /// Runs a micro-batch forward, and returns the packets that go along the outgoing edges.
    pub(super) fn run_forward(
        &mut self,
        micro_batch: usize,
        inputs: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let batch = Arc::clone(&self.current()?.batch);
        // 1
        let input = self.input(micro_batch, inputs)?.into_values();
        // 2 and 3
        let mut values = if batch.task.trains() {
            self.run_segments(micro_batch, input, retention)?
        } else {
            self.run_layers(micro_batch, 0..self.layers.len(), input, Pass::Evaluate, false)?
        };
        // 4. Where the last layer was in a dropped segment, rebuilding it computes the loss.
        if self.is_last && batch.task.trains() {
            if self.dropped(retention).last().is_none_or(|last| last.end < self.layers.len()) {
                self.run_loss(micro_batch, std::mem::take(&mut values), true)?;
            }
        } else if self.is_last && matches!(batch.task, Task::Predict) {
            let output = Packet::of(wide(&std::mem::take(&mut values)));
            self.current()?.predictions.insert(micro_batch, output);
        } else if self.is_last {
            self.run_loss(micro_batch, std::mem::take(&mut values), false)?;
        }
        // 5
        let value = (!self.is_last).then(|| Packet::of(values));
        let routes = self.routes.outgoing.clone();
        Ok(pack(micro_batch, value, routes, 0, &mut self.current()?.skip_values))
    }

    /// Returns the stage's input for a micro-batch, on its device, and puts arrived skip values
    /// aside (1).
    fn input(&mut self, micro_batch: usize, arrived: Vec<Packet>) -> Result<Packet, StageError> {
        let arrived = self.receive_all(arrived)?;
        let input = if self.is_first {
            let input = self.current()?.batch.inputs.get(micro_batch).cloned();
            input.map(|input| self.receive(input)).transpose()?
        } else {
            let routes = self.routes.incoming.clone();
            let chain_edge = routes.len().saturating_sub(1);
            unpack(micro_batch, arrived, routes, chain_edge, &mut self.current()?.skip_values)
        };
        input.ok_or_else(|| self.gone(0))
    }

    /// Runs all layers in training: with tapes (2), except in the segments that are dropped
    /// (3).
    fn run_segments(
        &mut self,
        micro_batch: usize,
        mut values: Vec<Box<dyn Part>>,
        retention: &StageRetention,
    ) -> Result<Vec<Box<dyn Part>>, StageError> {
        let (mut next, dropped) = (self.frozen, self.dropped(retention));
        let leaves_untaped = next > 0 || !dropped.is_empty();
        values = self.run_layers(micro_batch, 0..next, values, Pass::Train, false)?;
        for segment in dropped {
            // 2
            values =
                self.run_layers(micro_batch, next..segment.start, values, Pass::Train, true)?;
            // 3
            self.current()?.kept_inputs.insert((micro_batch, segment.start), copied(&values));
            next = segment.end;
            values = self.run_layers(micro_batch, segment, values, Pass::Train, false)?;
        }
        if leaves_untaped {
            free_abandoned(&self.device);
        }
        // 2
        self.run_layers(micro_batch, next..self.layers.len(), values, Pass::Train, true)
    }

    /// Runs the layers of `range` on `values`, with tapes or without.
    fn run_layers(
        &mut self,
        micro_batch: usize,
        range: Range<usize>,
        mut values: Vec<Box<dyn Part>>,
        pass: Pass,
        taped: bool,
    ) -> Result<Vec<Box<dyn Part>>, StageError> {
        let (batch, end) = (Arc::clone(&self.current()?.batch), range.end);
        let seed = self.settings.seed;
        let run = LayerRun {
            backend: &*Arc::clone(&self.settings.backend),
            device: &self.device.clone(),
            pass,
            key: ForwardKey { seed, updates: batch.updates, micro_batch },
            samples: batch.samples[micro_batch].clone(),
            side: batch.side.get(micro_batch),
        };
        let last =
            range.clone().last().filter(|last| self.is_last && last + 1 == self.layers.len());
        let mut recording: Option<Tape> = None;
        for index in range {
            let input_gradient = self.trains_before || index > self.frozen;
            // Without a backward a skip value isn't needed again.
            let has_backward = pass != Pass::Evaluate && index >= self.frozen;
            if let Some(tape) = recording.take() {
                match self.can_join(index, &tape) {
                    true => recording = Some(tape),
                    false => {
                        values = tape.values();
                        self.current()?.tapes.insert((micro_batch, index - 1), tape);
                    }
                }
            }
            let mode = match (pass, &mut recording) {
                (Pass::Evaluate, _) => Forward::Evaluate,
                (_, Some(tape)) => {
                    values = tape.continued(self.joints[index - 1].depends_on_input == Some(true));
                    Forward::Taped(Entry::Continued)
                }
                _ if !taped => Forward::Untaped,
                _ if input_gradient => Forward::Taped(Entry::Leaves),
                _ => Forward::Taped(Entry::Constants),
            };
            let current = self.current.as_mut().ok_or_else(|| StageError::no_step(""))?;
            let pop = |skip: &str| {
                let key = (micro_batch, skip.to_owned());
                match has_backward {
                    true => current.skip_values.get(&key).cloned(),
                    false => current.skip_values.remove(&key),
                }
            };
            let Forwarded { outputs, tape, loss, stashed, observations } =
                run.forward(&mut *self.layers[index], values, mode, pop)?;
            self.check_finite(index, "its output", tape.as_ref().map_or(&outputs, |t| &t.outputs))?;
            self.check_finite_skips(index, "the value that it stashes as", &stashed)?;
            let current = self.current()?;
            if pass == Pass::Train && !observations.is_empty() {
                current.observed.insert((index, micro_batch), observations);
            }
            if pass != Pass::Recompute {
                current
                    .skip_values
                    .extend(stashed.into_iter().map(|(skip, value)| ((micro_batch, skip), value)));
            }
            if let Some(loss) = loss.filter(|_| pass != Pass::Recompute) {
                current.added.insert((index, micro_batch), loss);
            }
            match (&mut recording, tape) {
                (Some(recording), Some(tape)) => recording.extend(tape),
                (_, tape) => recording = tape,
            }
            values = outputs;
        }
        if let Some(tape) = recording {
            values = tape.values();
            let last = end - 1;
            self.current()?.tapes.insert((micro_batch, last), tape);
        }
        if let Some(last) = last {
            run.check_output(&*self.layers[last], &values)?;
        }
        Ok(values)
    }

    /// Says whether a layer can be recorded on the tape of the layers before it.
    ///
    /// One backward for several layers takes less time than one for each. But it has the gradients
    /// of all at once, next to the step's, so that only small layers have one tape. Before a
    /// backward has shown what the layers depend on, each has one of its own.
    fn can_join(&self, layer: usize, tape: &Tape) -> bool {
        let together = &self.joints[layer - tape.modules.len()..=layer];
        let parameters: usize = together.iter().map(|joint| joint.parameters).sum();
        let is_known = !tape.is_lifted || self.joints[layer - 1].depends_on_input.is_some();
        let pops_nothing = self.layers[layer].pops().is_empty();
        parameters <= JOINED_PARAMETERS
            && is_known
            && pops_nothing
            && tape.can_continue()
            && !self.settings.finds_non_finite
    }

    /// Computes the loss and the metrics of a micro-batch (4), with a tape if a backward
    /// follows.
    fn run_loss(
        &mut self,
        micro_batch: usize,
        outputs: Vec<Box<dyn Part>>,
        taped: bool,
    ) -> Result<(), StageError> {
        let loss = self.loss.clone().ok_or(StageError::NoTarget)?;
        let metrics = Arc::clone(&self.settings.metrics);
        let target =
            self.current()?.batch.targets.get(micro_batch).cloned().ok_or(StageError::NoTarget)?;
        let target = self.receive(target)?;
        let current = self.current()?;
        for (number, metric) in metrics.iter().enumerate() {
            let LossSum { sum, weight } = metric(wide(&outputs), target.clone())?;
            current.metrics.insert((number, micro_batch), (sum, weight));
        }
        let last = self.layers.len().wrapping_sub(1);
        let tape = self.current()?.tapes.remove(&(micro_batch, last));
        let joins = |tape: &Tape| tape.can_continue() && !self.settings.finds_non_finite;
        let result = match tape {
            Some(mut tape) if taped && joins(&tape) => {
                let result = LossTape::continue_on(&mut tape, &*loss, target)?;
                self.current()?.tapes.insert((micro_batch, last), tape);
                result
            }
            tape => {
                let current = self.current()?;
                current.tapes.extend(tape.map(|tape| ((micro_batch, last), tape)));
                if taped {
                    let (tape, result) = LossTape::record(&*loss, outputs, target)?;
                    current.loss_tapes.insert(micro_batch, tape);
                    result
                } else {
                    loss(wide(&outputs), target)?
                }
            }
        };
        let sum = if taped { result.sum.inner() } else { result.sum };
        if self.settings.finds_non_finite && !Part::is_finite(&sum) {
            return Err(StageError::LossNotFinite { what: "the loss" });
        }
        self.current()?.losses.insert(micro_batch, (sum, result.weight.inner()));
        Ok(())
    }

    /// Returns the segments that are dropped and rebuilt. Layers without a backward are in none.
    pub(super) fn dropped(&self, retention: &StageRetention) -> Vec<Range<usize>> {
        let dropped = retention.dropped().iter();
        let dropped = dropped.map(|segment| segment.start.max(self.frozen)..segment.end);
        dropped.filter(|segment| !segment.is_empty()).collect()
    }

    /// Rebuilds the activations of a dropped segment from its kept input (6).
    pub(super) fn rebuild(
        &mut self,
        micro_batch: usize,
        segment: Range<usize>,
    ) -> Result<(), StageError> {
        let inputs = self.current()?.kept_inputs.remove(&(micro_batch, segment.start));
        let inputs = inputs.ok_or_else(|| self.gone(segment.start))?;
        let ends_model = self.is_last && segment.end == self.layers.len();
        let outputs = self.run_layers(micro_batch, segment, inputs, Pass::Recompute, true)?;
        if ends_model { self.run_loss(micro_batch, outputs, true) } else { Ok(()) }
    }

    /// Rebuilds the segment that `layer` belongs to, if its tape is missing (6).
    fn ensure_tape(
        &mut self,
        micro_batch: usize,
        layer: usize,
        retention: &StageRetention,
    ) -> Result<(), StageError> {
        if self.current()?.tapes.contains_key(&(micro_batch, layer)) {
            return Ok(());
        }
        let mut dropped = self.dropped(retention).into_iter();
        let segment = dropped.find(|segment| segment.contains(&layer));
        let segment = segment.ok_or_else(|| self.gone(layer))?;
        self.rebuild(micro_batch, segment)
    }

    /// Runs a micro-batch backward, and returns the packets that go back along the incoming
    /// edges.
    pub(super) fn run_backward(
        &mut self,
        micro_batch: usize,
        gradients: Vec<Packet>,
        retention: &StageRetention,
    ) -> Result<Vec<Packet>, StageError> {
        let last = self.layers.len() - 1;
        if self.frozen > last {
            return self.send_gradients(micro_batch, Vec::new());
        }
        let scale = self.current()?.batch.scale;
        // 6. This comes first because rebuilding the last layer may have yet to compute the
        //    loss.
        self.ensure_tape(micro_batch, last, retention)?;
        // 7
        let ends_in_loss =
            |step: &StageStep| step.tapes.get(&(micro_batch, last)).is_some_and(Tape::ends_in_loss);
        let mut flowing = if self.current.as_ref().is_some_and(ends_in_loss) {
            Vec::new()
        } else if self.is_last {
            let tape = self.current()?.loss_tapes.remove(&micro_batch);
            let gradients = tape.ok_or_else(|| self.gone(last))?.backward(scale);
            self.check_finite_loss(&gradients)?;
            gradients
        } else {
            let (gradients, routes) = (self.receive_all(gradients)?, self.routes.outgoing.clone());
            let gradient =
                unpack(micro_batch, gradients, routes, 0, &mut self.current()?.skip_gradients);
            gradient.ok_or_else(|| self.gone(last))?.into_gradients()
        };
        let mut left = last + 1;
        while left > self.frozen {
            let layer = left - 1;
            // 6
            self.ensure_tape(micro_batch, layer, retention)?;
            // 8
            let tape = self.current()?.tapes.remove(&(micro_batch, layer));
            let tape = tape.ok_or_else(|| self.gone(layer))?;
            let first = left - tape.modules.len();
            let current = self.current()?;
            let mut stashed = SkipValues::new();
            for name in tape.stashed() {
                let gradient = current.skip_gradients.remove(&(micro_batch, name.clone()));
                stashed.extend(gradient.map(|gradient| (name.clone(), gradient)));
            }
            let wants_gradient = tape.inputs.iter().any(|input| input.is_tracked());
            let layers = &mut self.layers[first..left];
            let Backwarded { inputs, popped } =
                run_backward(layers, tape, flowing, stashed, scale)?;
            if first == layer && wants_gradient {
                let depends = inputs.iter().any(Option::is_some);
                self.joints[layer].depends_on_input.get_or_insert(depends);
            }
            self.check_finite_parameters(layer)?;
            self.check_finite(layer, "the gradient of its input", inputs.iter().flatten())?;
            self.check_finite_skips(layer, "the gradient of the value that it pops as", &popped)?;
            let current = self.current()?;
            for (name, gradient) in popped {
                current.skip_values.remove(&(micro_batch, name.clone()));
                current.skip_gradients.insert((micro_batch, name), gradient);
            }
            flowing = inputs;
            left = first;
        }
        self.send_gradients(micro_batch, flowing)
    }

    /// Packs the gradients of the input and of skip values for the incoming edges (9).
    fn send_gradients(
        &mut self,
        micro_batch: usize,
        flowing: Vec<Option<Box<dyn Part>>>,
    ) -> Result<Vec<Packet>, StageError> {
        let gradient = (!self.is_first).then(|| Packet::gradients(flowing));
        let routes = self.routes.returning.clone();
        let chain_edge = routes.len().saturating_sub(1);
        Ok(pack(micro_batch, gradient, routes, chain_edge, &mut self.current()?.skip_gradients))
    }
}
