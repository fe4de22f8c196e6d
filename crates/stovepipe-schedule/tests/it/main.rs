//! Plans, programs, schedules and the simulator, from outside.

mod files;
mod mutations;
mod numbers;
mod schedules;
mod validation;
