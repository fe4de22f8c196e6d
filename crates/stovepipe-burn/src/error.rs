//! Errors of building a pipeline, of a stage, and of training.

pub(crate) mod build;
pub(crate) mod panic;
pub(crate) mod profile;
pub(crate) mod shape;
pub(crate) mod stage;
pub(crate) mod train;
