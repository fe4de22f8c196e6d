//! The simulator: costs in, a timeline out.

pub(crate) mod cost;
pub(crate) mod link;
pub(crate) mod queues;
pub(crate) mod simulate;
pub(crate) mod stage_cost;
pub(crate) mod timeline;
mod wires;
