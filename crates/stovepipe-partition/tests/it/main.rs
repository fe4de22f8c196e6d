//! Partitions and partitioners, from outside: known cases, every request there is, and random ones.

mod cases;
mod constraints;
mod optimality;
