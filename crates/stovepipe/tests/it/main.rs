//! Tests of pipelines, in one program: each links Burn, which takes longer than most tests.
//!
//! Programs of their own are only those that look at a whole process or are one: `backends` and
//! `memory` count its bytes, `jobs` is started by `mpirun`, `downstream` runs Cargo.

mod batch_norm;
mod dtypes;
mod exactness;
mod failures;
mod finiteness;
mod no_trace;
mod partition;
mod precision;
mod processes;
mod profile;
mod readme;
mod robustness;
mod semantics;
mod shapes;
mod side_inputs;
mod skips;
mod tapes;
mod ties;
mod values;
mod what_trains;
