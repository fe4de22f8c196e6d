//! Timelines for people to look at.

pub(crate) mod svg;
pub(crate) mod trace;
