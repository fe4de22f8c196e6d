//! Values that cross a boundary between layers: tensors with their types erased, and bytes
//! made of them.

pub(crate) mod boundary;
pub(crate) mod dtype;
pub(crate) mod packet;
pub(crate) mod part;
pub(crate) mod reading;
pub(crate) mod side;
pub(crate) mod sum;
pub(crate) mod wire;
