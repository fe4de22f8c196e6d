//! Measurements of what layers take and need, layer by layer and one rank at a time.

pub(crate) mod counter;
pub(crate) mod measure;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod profiling;
pub(crate) mod rehearsal;
pub(crate) mod stand_in;
pub(crate) mod subject;
pub(crate) mod traffic;
