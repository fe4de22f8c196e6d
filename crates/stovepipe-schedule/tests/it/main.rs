//! Plans, programs, schedules and the simulator, from outside.

mod files;
mod mutations;
mod numbers;
mod published;
mod schedules;
mod validation;
