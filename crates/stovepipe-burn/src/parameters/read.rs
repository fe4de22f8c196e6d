//! Copying parameters and gradients to the host by path.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::parameters::path::track_path;
use crate::value::part::read;

/// Copies the module's parameters to the host, by path.
pub(crate) fn read_parameters<M: Module>(module: &M) -> BTreeMap<String, TensorData> {
    let mut reader = ReadParameters { path: Vec::new(), read: BTreeMap::new() };
    module.visit(&mut reader);
    reader.read
}

/// The visitor that copies parameters to the host by path.
struct ReadParameters {
    path: Vec<String>,
    read: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for ReadParameters {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.read.insert(self.path.join("."), read(param.val().inner()));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.read.insert(self.path.join("."), read(param.val().inner()));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.read.insert(self.path.join("."), read(param.val().inner()));
    }
}

/// Takes the gradients of a module's parameters out and copies them to the host, by the path
/// of their parameter.
pub(crate) fn take_gradients<M: Module>(
    module: &M,
    gradients: &mut GradientsParams,
) -> BTreeMap<String, TensorData> {
    let mut reader = ReadGradients { path: Vec::new(), gradients, read: BTreeMap::new() };
    module.visit(&mut reader);
    reader.read
}

/// The visitor that copies gradients to the host by the path of their parameter.
struct ReadGradients<'a> {
    path: Vec<String>,
    gradients: &'a mut GradientsParams,
    read: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for ReadGradients<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.read.insert(self.path.join("."), read(gradient));
        }
    }
}
