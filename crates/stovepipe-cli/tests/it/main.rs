//! The command as a user runs it: known numbers, files, errors that help, and every choice there
//! is.

mod command;
mod examples;
mod extremes;
mod files;
mod numbers;
mod partitions;
mod refusals;
mod registries;
mod tuning;
