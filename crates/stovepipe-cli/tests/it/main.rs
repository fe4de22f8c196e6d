//! The command as a user runs it: known numbers, files, errors that help, and every choice there
//! is.

mod command;
mod files;
mod numbers;
mod refusals;
mod registries;
mod tuning;
