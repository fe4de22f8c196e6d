//! The context of a layer's forward: all that a layer is told in addition to its input.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use burn::tensor::{Device, FloatDType, Tensor};

use crate::backend::Backend;
use crate::error::shape::ShapeError;
use crate::layer::random::Draw;
use crate::layer::statistics::Observation;
use crate::value::boundary::{Boundary, from_parts, into_packet};
use crate::value::dtype;
use crate::value::packet::Packet;
use crate::value::side::{SideKind, SideValues};

/// The reason why a layer's forward runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pass {
    /// A training forward whose activations are kept, or of which only the output is wanted
    /// now.
    Train,
    /// A second run of a training forward, to rebuild activations.
    ///
    /// It must compute the same values, and must not count anything twice.
    Recompute,
    /// Evaluation or inference: no backward follows.
    Evaluate,
}

/// The context of a layer's forward: all that a layer is told in addition to its input.
#[derive(Debug)]
pub struct LayerContext<'a> {
    pass: Pass,
    key: ForwardKey,
    samples: Range<usize>,
    layer: &'a str,
    /// The number of draws of random numbers in this forward so far.
    draws: u32,
    /// The losses that this forward adds. Shapes `[1]`.
    losses: Vec<Tensor<1>>,
    /// The first reason to refuse the forward.
    refusal: Option<ShapeError>,
    /// The observations of batch normalizations.
    observations: Vec<Observation>,
    /// The values that the layer may pop and hasn't popped yet.
    pub(crate) popped: SkipValues,
    /// The values that the layer stashed.
    pub(crate) stashed: SkipValues,
    pub(crate) side: Option<SideInputs<'a>>,
    /// The type of floats that the layer computes in, if it was set.
    pub(crate) compute: Option<FloatDType>,
}

/// Values on skip connections by name.
pub(crate) type SkipValues = BTreeMap<String, Packet>;

/// The side inputs of a micro-batch.
#[derive(Clone, Copy)]
pub(crate) struct SideInputs<'a> {
    pub(crate) values: &'a SideValues,
    /// The backend that moves them to the layers' device.
    pub(crate) backend: &'a dyn Backend,
    pub(crate) device: &'a Device,
}

impl fmt::Debug for SideInputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

/// The place of a forward in the training, on which its random numbers depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ForwardKey {
    pub(crate) seed: u64,
    /// The number of steps and accumulations that succeeded before.
    pub(crate) updates: u64,
    pub(crate) micro_batch: usize,
}

impl<'a> LayerContext<'a> {
    pub(crate) fn new(pass: Pass, key: ForwardKey, samples: Range<usize>, layer: &'a str) -> Self {
        Self {
            pass,
            key,
            samples,
            layer,
            draws: 0,
            losses: Vec::new(),
            refusal: None,
            observations: Vec::new(),
            popped: SkipValues::new(),
            stashed: SkipValues::new(),
            side: None,
            compute: None,
        }
    }

    /// Lets the forward fail once it has returned, for the first reason that is given.
    pub(crate) fn refuse(&mut self, reason: ShapeError) {
        self.refusal.get_or_insert(reason);
    }

    /// Fails if the forward was refused.
    pub(crate) fn check(&mut self) -> Result<(), ShapeError> {
        self.refusal.take().map_or(Ok(()), Err)
    }

    pub(crate) fn observe(&mut self, observation: Observation) {
        self.observations.push(observation);
    }

    pub(crate) fn take_observations(&mut self) -> Vec<Observation> {
        std::mem::take(&mut self.observations)
    }

    /// Takes the sum of the losses that the forward added. Shape `[1]`.
    pub(crate) fn take_losses(&mut self) -> Option<Tensor<1>> {
        std::mem::take(&mut self.losses).into_iter().reduce(|sum, loss| sum + loss)
    }

    /// Returns the reason why the forward runs.
    #[must_use]
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// Returns the number of the step, which is the same on every stage.
    ///
    /// It is the number of steps and accumulations that succeeded before. A step that fails is
    /// repeated with the same number.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.key.updates
    }

    /// Returns the number of the micro-batch in the mini-batch, from 0.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.key.micro_batch
    }

    /// Returns the numbers of the mini-batch's samples that the micro-batch holds, from 0.
    #[must_use]
    pub fn samples(&self) -> Range<usize> {
        self.samples.clone()
    }

    /// Returns the layer's name in the model, like `blocks.3`.
    #[must_use]
    pub fn layer(&self) -> &str {
        self.layer
    }

    /// Stashes a value for a later layer, which [pops](Self::pop) it by this name.
    ///
    /// If the later layer is on another rank, the value goes straight to that rank, and its
    /// gradient straight back. The layer must declare the name in
    /// [`Layer::stashes`](crate::Layer::stashes).
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::Linear;
    /// use burn::tensor::Tensor;
    /// use stovepipe_burn::{LayerContext, Layer};
    ///
    /// #[derive(Module, Debug)]
    /// struct Down {
    ///     linear: Linear,
    ///     #[module(skip)]
    ///     level: String,
    /// }
    ///
    /// impl Layer for Down {
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
    ///         context.stash(&self.level, x.clone());
    ///         self.linear.forward(x)
    ///     }
    ///
    ///     fn stashes(&self) -> Vec<String> {
    ///         vec![self.level.clone()]
    ///     }
    /// }
    ///
    /// #[derive(Module, Debug)]
    /// struct Up {
    ///     linear: Linear,
    ///     #[module(skip)]
    ///     level: String,
    /// }
    ///
    /// impl Layer for Up {
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
    ///         self.linear.forward(x) + context.pop::<Tensor<2>>(&self.level)
    ///     }
    ///
    ///     fn pops(&self) -> Vec<String> {
    ///         vec![self.level.clone()]
    ///     }
    /// }
    /// ```
    pub fn stash(&mut self, name: &str, value: impl Boundary) {
        self.stashed.insert(name.to_owned(), into_packet(value));
    }

    /// Takes the value that an earlier layer [stashed](Self::stash) under this name.
    ///
    /// # Panics
    ///
    /// If the layer doesn't declare the name in [`Layer::pops`](crate::Layer::pops), pops it
    /// twice, or asks for another type than was stashed.
    pub fn pop<T: Boundary>(&mut self, name: &str) -> T {
        let layer = self.layer;
        let Some(packet) = self.popped.remove(name) else {
            panic!(
                "layer `{layer}` pops `{name}`, which isn't there: declare it in `Layer::pops`, \
                 and pop it once"
            );
        };
        match from_parts(packet.into_values()) {
            Ok(value) => value,
            Err(error) => panic!("layer `{layer}`: the stashed value `{name}` {error}"),
        }
    }

    /// Adds to the loss, such as a penalty for an uneven use of experts.
    ///
    /// `sum`, of shape `[1]`, is a sum over the samples of the micro-batch in the unit of the
    /// loss's own sum: both are divided by the weight of the whole mini-batch. Evaluation
    /// reports it next to the loss. A recomputation doesn't count it again.
    ///
    /// With another shape than `[1]` the step fails: added to others it would be broadcast.
    pub fn add_loss(&mut self, sum: Tensor<1>) {
        if sum.dims() != [1] {
            let (layer, shape) = (self.layer.to_owned(), sum.dims().to_vec());
            return self.refuse(ShapeError::AddedLoss { layer, shape });
        }
        self.losses.push(dtype::widen(sum));
    }

    /// Returns this micro-batch's slice of a side input, such as a mask.
    ///
    /// Side inputs are given to a step by name with
    /// [`Pipeline::side_input`](crate::Pipeline::side_input).
    ///
    /// # Panics
    ///
    /// If the step was given no side input of this name, one of another type or a
    /// [constant](Self::side_constant), or if a device fails while the value is moved.
    #[must_use]
    pub fn side_input<T: Boundary>(&self, name: &str) -> T {
        self.side_value(name, SideKind::PerSample)
    }

    /// Returns a value that is the same for all samples, whole for every micro-batch.
    ///
    /// Such values are given to a step by name with
    /// [`Pipeline::side_constant`](crate::Pipeline::side_constant).
    ///
    /// # Panics
    ///
    /// As [`side_input`](Self::side_input), also if the value was given per sample.
    #[must_use]
    pub fn side_constant<T: Boundary>(&self, name: &str) -> T {
        self.side_value(name, SideKind::Constant)
    }

    /// Returns a side input, which must have been given as one of this kind.
    fn side_value<T: Boundary>(&self, name: &str, kind: SideKind) -> T {
        let (layer, wanted) = (self.layer, kind.method());
        let side = self.side.and_then(|side| Some((side, side.values.get(name)?)));
        let Some((SideInputs { backend, device, .. }, value)) = side else {
            let known = self.side.iter().flat_map(|side| side.values.keys());
            let known: Vec<&String> = known.collect();
            panic!(
                "layer `{layer}` asks for the side input `{name}`, the step was given {known:?}: \
                 call `.{wanted}(\"{name}\", …)` on the pipeline before every step, evaluation \
                 and prediction"
            );
        };
        assert!(
            value.kind == kind,
            "layer `{layer}` asks for `{name}` with `{wanted}`, but it was given with `{}`: what \
             is cut by sample is `side_input` on both sides, what is whole is `side_constant`",
            value.kind.method()
        );
        let received = value.on_device(device, |packet| backend.receive(packet, device));
        let received = received
            .unwrap_or_else(|error| panic!("layer `{layer}`: the side input `{name}`: {error}"));
        let parts = received.into_values().into_iter().map(|part| {
            let part = match self.compute {
                Some(dtype) => part.cast(dtype),
                None => part,
            };
            match self.pass {
                Pass::Evaluate => part,
                Pass::Train | Pass::Recompute => part.track(),
            }
        });
        match from_parts(parts.collect()) {
            Ok(value) => value,
            Err(error) => panic!("layer `{layer}`: the side input `{name}` {error}"),
        }
    }

    /// Begins the next draw of random numbers.
    pub(super) fn draw(&mut self) -> Draw {
        let draw = Draw::new(self.key.seed, self.key.updates, self.layer, self.draws);
        self.draws += 1;
        draw
    }
}
