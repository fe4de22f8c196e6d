//! Models: their layers before they are made, what is known of them, and what connects them.

pub(crate) mod constants;
pub(crate) mod layer_spec;
pub(crate) mod paths;
pub(crate) mod replay;
pub(crate) mod sequential;
pub(crate) mod skips;
pub(crate) mod ties;
