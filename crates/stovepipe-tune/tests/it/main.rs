//! The tuner from outside.

mod model;
mod search;
mod tuner;
