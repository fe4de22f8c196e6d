//! One stage at work: consecutive layers of one rank, and what they share with the other
//! stages.

pub(crate) mod batch;
pub(crate) mod burn_stage;
pub(crate) mod finiteness;
pub(crate) mod report;
pub(crate) mod routes;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod split;
pub(crate) mod step;
pub(crate) mod tied_gradients;
pub(crate) mod update;
