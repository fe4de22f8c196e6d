//! The trait of stages that the executor can run.

use std::sync::Arc;

use stovepipe_schedule::{MicroBatch, Mode, Stage, StageRetention};

use crate::agreement::Agreement;

/// All that a stage is told at the start of a step.
#[derive(Debug)]
#[non_exhaustive]
pub struct Begin<'a, I> {
    /// Number of the step; grows from step to step, failed ones included.
    pub step: u64,
    /// The stage addressed.
    pub stage: Stage,
    /// Number of stages in all.
    pub stages: usize,
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// Whether backwards and an update follow.
    pub mode: Mode,
    /// The batch, the same for every stage.
    pub input: &'a Arc<I>,
}

/// The compute of one stage.
///
/// # Contract
///
/// In a step the executor calls [`begin`](Self::begin) and then the actions of the program in their
/// order. In training it then calls [`share`](Self::share) and [`take_shared`](Self::take_shared).
/// [`finish`](Self::finish) follows, and in training [`prepare`](Self::prepare) with what all
/// stages reported and, once every rank has prepared, [`commit`](Self::commit). Whatever fails or
/// panics before `commit`, on this rank or another, [`abandon`](Self::abandon) follows instead. It
/// must leave parameters, optimizer state and statistics as they were before `begin`.
///
/// All calls come from one thread. Values go in and out in the order of the stage's edges: inputs
/// by ascending source, outputs by ascending destination; gradients likewise.
///
/// # Examples
///
/// Stages that multiply by a number, trained on the sum of the outputs:
///
/// ```
/// use std::{collections::HashMap, convert::Infallible};
/// use stovepipe_runtime::{Begin, StageCompute};
/// use stovepipe_schedule::{MicroBatch, StageRetention};
///
/// struct Scale { weight: f64, gradient: f64, inputs: HashMap<MicroBatch, f64>, batch: Vec<f64> }
///
/// impl StageCompute for Scale {
///     type Value = f64;
///     type Input = Vec<f64>;
///     type Output = ();
///     type Error = Infallible;
///
///     fn begin(&mut self, begin: Begin<'_, Vec<f64>>) -> Result<(), Infallible> {
///         self.batch = begin.input.to_vec();
///         Ok(())
///     }
///     fn forward(
///         &mut self,
///         m: MicroBatch,
///         inputs: Vec<f64>,
///         _: &StageRetention,
///     ) -> Result<Vec<f64>, Infallible> {
///         let x = inputs.first().copied().unwrap_or_else(|| self.batch[m.index()]);
///         self.inputs.insert(m, x);
///         Ok(vec![self.weight * x])
///     }
///     fn recompute(&mut self, _: MicroBatch, _: &StageRetention) -> Result<(), Infallible> {
///         Ok(())
///     }
///     fn backward(
///         &mut self,
///         m: MicroBatch,
///         gradients: Vec<f64>,
///         _: &StageRetention,
///     ) -> Result<Vec<f64>, Infallible> {
///         let dy = gradients.first().copied().unwrap_or(1.0);
///         self.gradient += dy * self.inputs.remove(&m).unwrap_or_default();
///         Ok(vec![dy * self.weight])
///     }
///     fn finish(&mut self) -> Result<Vec<u8>, Infallible> {
///         Ok(Vec::new())
///     }
///     fn prepare(&mut self, _: &[Vec<u8>]) -> Result<(), Infallible> {
///         Ok(())
///     }
///     fn commit(&mut self) -> Result<(), Infallible> {
///         self.weight -= 0.1 * std::mem::take(&mut self.gradient);
///         Ok(())
///     }
///     fn abandon(&mut self) {
///         self.gradient = 0.0;
///         self.inputs.clear();
///     }
///     fn take_output(&mut self) {}
/// }
/// ```
///
/// (The executor ignores what the last stage's forward and the first stage's backward return: no
/// edge takes it. Stages may return exactly as many values as they have edges, or these extras.)
pub trait StageCompute: Send + 'static {
    /// A value that travels along an edge: an activation or a gradient.
    type Value: Send + 'static;
    /// The input of a step: the batch.
    type Input: Send + Sync + 'static;
    /// The output that a stage hands back after a step, such as predictions.
    type Output: Send + 'static;
    /// The error with which a stage fails.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Whether [`backward_input`](Self::backward_input) and
    /// [`backward_weight`](Self::backward_weight) are implemented.
    const SPLITS_BACKWARD: bool = false;

    /// Says what ranks must agree on before a step, besides the program, where they are processes
    /// that could have been started differently.
    fn agreement(input: &Self::Input) -> Agreement {
        let _ = input;
        Agreement::new()
    }

    /// Starts a step.
    ///
    /// # Errors
    ///
    /// Whatever makes the stage unable to take part.
    fn begin(&mut self, begin: Begin<'_, Self::Input>) -> Result<(), Self::Error>;

    /// `F`: consumes the inputs and returns the outputs. In training keeps what `retention` says;
    /// otherwise nothing.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong, wrong shapes included.
    fn forward(
        &mut self,
        micro_batch: MicroBatch,
        inputs: Vec<Self::Value>,
        retention: &StageRetention,
    ) -> Result<Vec<Self::Value>, Self::Error>;

    /// `R`: rebuilds the activations of the last dropped segment. Earlier ones are rebuilt one at a
    /// time inside the backward.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn recompute(
        &mut self,
        micro_batch: MicroBatch,
        retention: &StageRetention,
    ) -> Result<(), Self::Error>;

    /// `B`: consumes the outputs' gradients, adds to the weights' gradients, returns the inputs'.
    ///
    /// Edges without gradients ([`Edges::carries_gradient`]) are left out of both.
    ///
    /// [`Edges::carries_gradient`]: stovepipe_schedule::Edges::carries_gradient
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn backward(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Self::Value>,
        retention: &StageRetention,
    ) -> Result<Vec<Self::Value>, Self::Error>;

    /// `I`: as `B`, but leaves the weights' gradients to `W`. Only called where
    /// [`SPLITS_BACKWARD`](Self::SPLITS_BACKWARD) says so.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn backward_input(
        &mut self,
        micro_batch: MicroBatch,
        gradients: Vec<Self::Value>,
        retention: &StageRetention,
    ) -> Result<Vec<Self::Value>, Self::Error> {
        // A whole backward is a correct `I` whose `W` has nothing left to do.
        self.backward(micro_batch, gradients, retention)
    }

    /// `W`: adds to the weights' gradients. Only called where
    /// [`SPLITS_BACKWARD`](Self::SPLITS_BACKWARD) says so.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn backward_weight(&mut self, micro_batch: MicroBatch) -> Result<(), Self::Error> {
        let _ = micro_batch;
        Ok(())
    }

    /// All backwards of the step have run: returns the values that other stages need before they
    /// can report, each with its stage, such as gradients of parameters that several stages share.
    ///
    /// Whoever gives a stage a value gets one from it. There is at most one for each stage, and
    /// none for itself.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; it is the stage's vote against the update.
    fn share(&mut self) -> Result<Vec<(Stage, Self::Value)>, Self::Error> {
        Ok(Vec::new())
    }

    /// Takes the values that other stages share with this one, by ascending stage; none if it gave
    /// none.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share).
    fn take_shared(&mut self, values: Vec<(Stage, Self::Value)>) -> Result<(), Self::Error> {
        drop(values);
        Ok(())
    }

    /// All actions of the step have run: reports what every stage must know before the update
    /// (losses, weights of samples, parts of norms), encoded as the implementation likes.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; it is the stage's vote against the update.
    fn finish(&mut self) -> Result<Vec<u8>, Self::Error>;

    /// Gets the reports of all stages in stage order and makes ready for the update, without
    /// changing anything that `abandon` can't restore.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; it is the stage's vote against the update.
    fn prepare(&mut self, reports: &[Vec<u8>]) -> Result<(), Self::Error>;

    /// Updates the parameters; all ranks do.
    ///
    /// # Errors
    ///
    /// A failure here leaves the pipeline unusable, because other stages have updated.
    fn commit(&mut self) -> Result<(), Self::Error>;

    /// Forgets the step: activations, gradients, whatever was prepared.
    fn abandon(&mut self);

    /// Hands back the output of a successful step.
    fn take_output(&mut self) -> Self::Output;
}
