//! Character-level Transformer language model.
fn main() {}
