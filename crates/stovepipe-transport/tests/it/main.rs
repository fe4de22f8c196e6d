//! The trait and its small types, channels within a process, and a conformance suite that can fail.

mod conformance;
mod in_process;
mod transport;
