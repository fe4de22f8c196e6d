//! Work on a module's parameters by their paths: reading, writing, casting, averaging,
//! initializing.

pub(crate) mod averaging;
pub(crate) mod cast;
pub(crate) mod find;
pub(crate) mod generator;
pub(crate) mod gradients;
pub(crate) mod initialize;
pub(crate) mod leaves;
pub(crate) mod named;
pub(crate) mod path;
pub(crate) mod read;
pub(crate) mod write;
