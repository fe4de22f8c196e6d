//! Pipeline-parallel training for Rust on the Burn framework.
