//! The simulator: costs in, a timeline out.

pub(crate) mod cost;
pub(crate) mod simulate;
pub(crate) mod timeline;
