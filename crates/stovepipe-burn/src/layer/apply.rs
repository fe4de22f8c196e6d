//! Wrappers that make layers of Burn's modules and of closures.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;

use crate::layer::Layer;
use crate::layer::context::LayerContext;
use crate::parameters::named::delegate_module;
use crate::value::boundary::Boundary;

/// A layer of a module and the function that runs it, as
/// [`Sequential::push_module`](crate::Sequential::push_module) makes it.
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
