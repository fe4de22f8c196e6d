//! Emulated pipelines: stages that wait as long as they would compute, and hand on values as large
//! as theirs would be, on the real executor.
//!
//! A small machine emulates many ranks, as waiting needs no core. What is measured next to the
//! [simulated](stovepipe_schedule::simulate) time is what the simulator doesn't know: the executor,
//! its threads, and the handing over of values.
//!
//! ```
//! use stovepipe_emulate::Emulation;
//! use stovepipe_schedule::{
//!     CostModel, Edges, OneFOneB, Program, Retention, Schedule, Shape, simulate,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = OneFOneB.plan(Shape::new(4, 8))?;
//! let program = Program::lower(&plan, &Edges::chain(4), &Retention::keep_all(&plan))?;
//! // A millisecond for a forward, two for a backward.
//! let costs = CostModel::uniform(4, 1e-3, 2e-3);
//! let mut emulation = Emulation::start(&program, &costs, 1 << 10)?;
//! let measured = emulation.step()?.makespan();
//! assert!(measured >= simulate(&program, &costs)?.makespan());
//! # Ok(())
//! # }
//! ```

mod emulation;
mod stage;

pub use emulation::{Emulation, EmulationError};
