//! The trait of layers, and wrappers that make layers of Burn's modules and of closures.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;

use crate::{Boundary, LayerContext};

/// A Burn module with one typed input and one typed output: the unit that a pipeline is cut into.
///
/// The forward must be a function of the module's parameters, the input and the context alone, and
/// compute the same values whenever it is called with the same ones, because recomputation calls it
/// twice. In particular it must not draw random numbers from the device's generator: use
/// [`LayerContext::dropout`], [`LayerContext::uniform`] and [`LayerContext::normal`].
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{LayerNorm, Linear};
/// use burn::tensor::{Tensor, activation::gelu};
/// use stovepipe_burn::{LayerContext, Layer};
///
/// #[derive(Module, Debug)]
/// struct FeedForward {
///     norm: LayerNorm,
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Layer for FeedForward {
///     type Input = Tensor<3>;
///     type Output = Tensor<3>;
///
///     fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
///         let hidden = gelu(self.up.forward(self.norm.forward(x.clone())));
///         x + self.down.forward(hidden)
///     }
/// }
/// ```
pub trait Layer: Module + 'static {
    /// What it takes.
    type Input: Boundary;
    /// What it returns.
    type Output: Boundary;

    /// Computes the output.
    ///
    /// # Panics
    ///
    /// May panic, as tensor operations do on wrong shapes: the step then ends with an error that
    /// names the stage, and nothing is updated.
    fn forward(&self, input: Self::Input, context: &mut LayerContext<'_>) -> Self::Output;

    /// Names of the values that every forward [stashes](LayerContext::stash) for a later layer. Names are those
    /// of the whole model: a layer that is used several times takes its names as arguments.
    fn stashes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Names of the values that every forward [pops](LayerContext::pop): each stashed by an earlier layer, and
    /// popped by no other.
    fn pops(&self) -> Vec<String> {
        Vec::new()
    }

    /// Floating-point operations that a forward takes for one sample, if the layer states them: what
    /// [`LayerCosts::Flops`](crate::LayerCosts::Flops) balances.
    fn flops(&self) -> Option<f64> {
        None
    }
}

/// Writes the methods that every hand-written module delegates to the one inside it.
macro_rules! delegate_module {
    ($inner:ident) => {
        fn collect_devices(&self, devices: Devices) -> Devices {
            self.$inner.collect_devices(devices)
        }

        fn fork(self, device: &Device) -> Self {
            Self { $inner: self.$inner.fork(device), ..self }
        }

        fn to_device(self, device: &Device) -> Self {
            Self { $inner: self.$inner.to_device(device), ..self }
        }

        fn train(self) -> Self {
            Self { $inner: self.$inner.train(), ..self }
        }

        fn valid(&self) -> Self {
            Self { $inner: self.$inner.valid(), ..self.clone() }
        }

        fn materialize(self) -> Self {
            Self { $inner: self.$inner.materialize(), ..self }
        }
    };
}

/// A module together with the function that runs it; see
/// [`Sequential::push_module`](crate::Sequential::push_module).
pub struct Apply<M, F, I> {
    module: M,
    forward: Arc<F>,
    input: PhantomData<fn(I)>,
}

impl<M, F, I> Apply<M, F, I> {
    pub(crate) fn new(module: M, forward: Arc<F>) -> Self {
        Self { module, forward, input: PhantomData }
    }
}

impl<M: Clone, F, I> Clone for Apply<M, F, I> {
    fn clone(&self) -> Self {
        Self::new(self.module.clone(), Arc::clone(&self.forward))
    }
}

impl<M: fmt::Debug, F, I> fmt::Debug for Apply<M, F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.module.fmt(f)
    }
}

impl<M: Module, F: Send + Sync, I> Module for Apply<M, F, I> {
    delegate_module!(module);

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.module.visit(visitor);
    }

    fn map<T: ModuleMapper>(self, mapper: &mut T) -> Self {
        Self { module: self.module.map(mapper), ..self }
    }
}

impl<M, F, I, O> Layer for Apply<M, F, I>
where
    M: Module + 'static,
    F: Fn(&M, I, &mut LayerContext<'_>) -> O + Send + Sync + 'static,
    I: Boundary,
    O: Boundary,
{
    type Input = I;
    type Output = O;

    fn forward(&self, input: I, context: &mut LayerContext<'_>) -> O {
        (self.forward)(&self.module, input, context)
    }
}

/// A module without parameters.
#[derive(Clone, Copy, Debug)]
pub struct Stateless;

impl Module for Stateless {
    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn fork(self, _: &Device) -> Self {
        self
    }

    fn to_device(self, _: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        *self
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, _: &mut V) {}

    fn map<T: ModuleMapper>(self, _: &mut T) -> Self {
        self
    }
}

/// A module that goes by its layer's name, so that paths of parameters are those in the whole model
/// (`blocks.3.up.weight`) although layers are stepped one by one.
#[derive(Clone, Debug)]
pub(crate) struct Named<M> {
    name: Arc<str>,
    module: M,
}

impl<M: Module> Named<M> {
    pub(crate) fn new(name: Arc<str>, module: M) -> Self {
        Self { name, module }
    }

    pub(crate) fn inner(&self) -> &M {
        &self.module
    }
}

impl<M: Module> Module for Named<M> {
    delegate_module!(module);

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.enter_module(&self.name, "Layer");
        self.module.visit(visitor);
        visitor.exit_module(&self.name, "Layer");
    }

    fn map<T: ModuleMapper>(self, mapper: &mut T) -> Self {
        mapper.enter_module(&self.name, "Layer");
        let module = self.module.map(mapper);
        mapper.exit_module(&self.name, "Layer");
        Self { module, ..self }
    }
}
