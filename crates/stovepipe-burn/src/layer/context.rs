//! What a layer is told beside its input.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::backend::Backend;
use crate::layer::random::Draw;
use crate::layer::statistics::Observation;
use crate::value::boundary::{Boundary, from_parts, into_packet};
use crate::value::dtype;
use crate::value::packet::Packet;

/// Why a layer's forward runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pass {
    /// A training forward whose activations are kept, or of which only the output is wanted now.
    Train,
    /// The same forward once more, to rebuild activations. Must compute the same values; must not
    /// count anything twice.
    Recompute,
    /// Evaluation or inference: no backward follows.
    Evaluate,
}

/// What a layer is told beside its input.
#[derive(Debug)]
pub struct LayerContext<'a> {
    pass: Pass,
    key: ForwardKey,
    samples: Range<usize>,
    layer: &'a str,
    /// How often randomness has been used in this forward.
    draws: u32,
    /// What this forward adds to the loss.
    losses: Vec<Tensor<1>>,
    /// What batch normalizations saw.
    observations: Vec<Observation>,
    /// What it may pop, by name, ready to be used.
    pub(crate) popped: SkipValues,
    /// What it stashed.
    pub(crate) stashed: SkipValues,
    pub(crate) side: SideInputs<'a>,
    /// The type of floats that the layer computes in, if it was set.
    pub(crate) compute: Option<FloatDType>,
}

/// Values on skip connections by name.
pub(crate) type SkipValues = BTreeMap<String, Packet>;

/// The side inputs of a micro-batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct SideInputs<'a> {
    pub(crate) packets: Option<&'a BTreeMap<String, Packet>>,
    /// Where layers want them, and who brings them there.
    pub(crate) receiver: Option<(&'a dyn Backend, &'a Device)>,
}

impl fmt::Debug for SideInputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.packets.fmt(f)
    }
}

/// Where in the training a forward runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ForwardKey {
    pub(crate) seed: u64,
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
            observations: Vec::new(),
            popped: SkipValues::new(),
            stashed: SkipValues::new(),
            side: SideInputs::default(),
            compute: None,
        }
    }

    pub(crate) fn observe(&mut self, observation: Observation) {
        self.observations.push(observation);
    }

    pub(crate) fn take_observations(&mut self) -> Vec<Observation> {
        std::mem::take(&mut self.observations)
    }

    /// What the forward added to the loss.
    pub(crate) fn take_losses(&mut self) -> Option<Tensor<1>> {
        std::mem::take(&mut self.losses).into_iter().reduce(|sum, loss| sum + loss)
    }

    /// Why the forward runs.
    #[must_use]
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// Number of the step, the same on every stage: how many steps and accumulations succeeded
    /// before it. One that failed is repeated with the same number.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.key.updates
    }

    /// Which micro-batch of the mini-batch this is.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.key.micro_batch
    }

    /// Which samples of the mini-batch the micro-batch holds.
    #[must_use]
    pub fn samples(&self) -> Range<usize> {
        self.samples.clone()
    }

    /// The layer's name in the model, like `blocks.3`.
    #[must_use]
    pub fn layer(&self) -> &str {
        self.layer
    }

    /// Keeps a value for a later layer, which [pops](Self::pop) it by this name, past all layers between.
    /// Where they are on other ranks it goes straight to the one that needs it, and its gradient straight
    /// back. The layer must declare the name in [`Layer::stashes`](crate::Layer::stashes).
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
    /// If the layer doesn't declare the name in [`Layer::pops`](crate::Layer::pops), pops it twice, or
    /// asks for another type than was stashed.
    pub fn pop<T: Boundary>(&mut self, name: &str) -> T {
        let layer = self.layer;
        let Some(packet) = self.popped.remove(name) else {
            panic!(
                "layer `{layer}` pops `{name}`, which isn't there: declare it in `Layer::pops`, and pop it once"
            );
        };
        match from_parts(packet.into_values()) {
            Ok(value) => value,
            Err(error) => panic!("layer `{layer}`: the stashed value `{name}` {error}"),
        }
    }

    /// Adds to the loss, such as a penalty for how a mixture of experts is used. The sum over the samples
    /// of the micro-batch, in the unit of the loss's own sum: the weight of the whole mini-batch divides
    /// both. In evaluation it is reported beside the loss; a recomputation doesn't count it again.
    pub fn add_loss(&mut self, sum: Tensor<1>) {
        self.losses.push(dtype::widen(sum));
    }

    /// The part for this micro-batch of a value that the step was given under this name with
    /// [`Pipeline::side_input`](crate::Pipeline::side_input), such as a mask.
    ///
    /// # Panics
    ///
    /// If the step was given none of this name, or one of another type.
    #[must_use]
    pub fn side_input<T: Boundary>(&self, name: &str) -> T {
        let layer = self.layer;
        let packets = self.side.packets;
        let Some(packet) = packets.and_then(|packets| packets.get(name)) else {
            let known: Vec<&String> = packets.into_iter().flatten().map(|(name, _)| name).collect();
            panic!(
                "layer `{layer}` asks for the side input `{name}`, the step was given {known:?}: call \
                 `.side_input(\"{name}\", …)` on the pipeline before every step, evaluation and prediction"
            );
        };
        let packet = packet.clone();
        let received = match self.side.receiver {
            Some((backend, device)) => backend.receive(packet, device),
            None => Ok(packet),
        };
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

    /// Sets elements to zero with this probability and scales the others up, in training; returns `x` in
    /// evaluation.
    ///
    /// Which elements is a pure function of the pipeline's seed, the step, the layer's name, how often
    /// the forward has drawn before, the sample's number in the mini-batch and the element's in the
    /// sample: the same when the forward is recomputed, and for every number of stages and micro-batches.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::Linear;
    /// use burn::tensor::Tensor;
    /// use stovepipe_burn::{LayerContext, Layer};
    ///
    /// #[derive(Module, Debug)]
    /// struct Regularized {
    ///     linear: Linear,
    /// }
    ///
    /// impl Layer for Regularized {
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>, context: &mut LayerContext<'_>) -> Tensor<2> {
    ///         let x = context.dropout(x, 0.1);
    ///         self.linear.forward(x)
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// If the probability isn't at least 0 and below 1, or the first axis of `x` isn't the batch axis,
    /// so that its elements can't be dealt out evenly among the samples.
    pub fn dropout<const D: usize>(&mut self, x: Tensor<D>, probability: f64) -> Tensor<D> {
        assert!(
            (0.0..1.0).contains(&probability),
            "the probability of dropout is {probability}: give at least 0 and less than 1"
        );
        let draw = self.draw();
        if self.pass == Pass::Evaluate || probability == 0.0 {
            return x;
        }
        let kept = 1.0 - probability;
        let device = x.device().inner();
        let mask = draw.mask(x.dims(), &self.samples, &device, kept, 1.0 / kept);
        let mask = typed_as(mask, &x);
        x * mask
    }

    /// Numbers from 0 to 1 in the shape of `like`, keyed as those of [`dropout`](Self::dropout), in
    /// training and evaluation alike. No gradient flows into them.
    ///
    /// # Panics
    ///
    /// If the elements can't be dealt out evenly among the samples.
    pub fn uniform<const D: usize>(&mut self, like: &Tensor<D>) -> Tensor<D> {
        // Rounded to 16 bits, the largest would become 1.
        let below_one = match like.dtype() {
            DType::BF16 => 1.0 - 1.0 / 256.0,
            DType::F16 => 1.0 - 1.0 / 2048.0,
            _ => 1.0,
        };
        let numbers = self.draw_uniform(like);
        typed_as(if below_one < 1.0 { numbers.clamp_max(below_one) } else { numbers }, like)
    }

    /// In 32 bits and without autodiff.
    fn draw_uniform<const D: usize>(&mut self, like: &Tensor<D>) -> Tensor<D> {
        let draw = self.draw();
        draw.uniform(like.dims(), &self.samples, &like.device().inner())
    }

    /// Numbers of mean 0 and deviation 1 in the shape of `like`, as [`uniform`](Self::uniform), by the
    /// transform of Box and Muller.
    ///
    /// # Panics
    ///
    /// As [`uniform`](Self::uniform).
    pub fn normal<const D: usize>(&mut self, like: &Tensor<D>) -> Tensor<D> {
        // From above 0 to 1, so that the logarithm is finite.
        let radius = self.draw_uniform(like).neg().add_scalar(1.0).log().mul_scalar(-2.0).sqrt();
        let angle = self.draw_uniform(like).mul_scalar(std::f64::consts::TAU);
        typed_as(radius * angle.cos(), like)
    }

    fn draw(&mut self) -> Draw {
        let draw = Draw::new(self.key.seed, self.key.updates, self.layer, self.draws);
        self.draws += 1;
        draw
    }
}

/// Constants of the type of `like`, and with autodiff where it has it.
fn typed_as<const D: usize>(constants: Tensor<D>, like: &Tensor<D>) -> Tensor<D> {
    let constants = dtype::cast(constants, like.dtype());
    if like.device().is_autodiff() { Tensor::from_inner(constants) } else { constants }
}
