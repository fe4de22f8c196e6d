//! A module under its layer's name.

use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;

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

pub(crate) use delegate_module;

/// A module under its layer's name.
///
/// With it, paths of parameters are those in the whole model (`blocks.3.up.weight`), although
/// each layer is updated by itself.
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

    /// Returns another module under the same name.
    pub(crate) fn with_inner(self, change: impl FnOnce(M) -> M) -> Self {
        Self { module: change(self.module), ..self }
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
