//! Pipeline plans as data.
//!
//! A [`Schedule`] writes a [`Plan`]: for each rank, the ordered list of compute actions. A plan is
//! checked when it is made, then [lowered](Program::lower) along the model's [`Edges`] and its
//! [`Retention`] to a [`Program`] with sends, receives and recomputation, which is
//! [simulated](simulate) and executed by the same code whatever schedule wrote it.
//!
//! Nothing here knows a device, a tensor or a thread.
//!
//! ```
//! use stovepipe_schedule::{CostModel, Edges, GPipe, Program, Retention, Schedule, Shape, simulate};
//!
//! let plan = GPipe::default().plan(Shape::new(4, 8))?;
//! println!("{plan}");
//! let program = Program::lower(&plan, &Edges::chain(4), &Retention::keep_all(&plan))?;
//! let timeline = simulate(&program, &CostModel::uniform(4, 1.0, 1.0))?;
//! assert_eq!(timeline.makespan(), 2.0 * (8.0 + 3.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod cost;
mod edges;
mod error;
mod grid;
mod ids;
mod memory;
mod plan;
mod plan_builder;
mod plan_file;
mod program;
mod progress;
mod retention;
mod schedule;
mod schedules;
mod shape;
mod simulate;
mod svg;
mod timeline;
mod trace;

pub use action::{Action, Compute, ComputeKind, Direction, Message, ParseActionError};
pub use cost::{CostModel, Link, StageCost};
pub use edges::{Edge, Edges};
pub use error::{CostError, Fault, PlanError};
pub use ids::{MicroBatch, Rank, Stage};
pub use memory::{LayerMemory, StageMemory};
pub use plan::{Mode, Plan};
pub use plan_builder::PlanBuilder;
pub use program::Program;
pub use retention::{Retention, StageRetention};
pub use schedule::Schedule;
pub use schedules::{
    Drain, DualPipeV, ForwardOnly, GPipe, Interleaved1F1B, LoopedBfs, NamedSchedule, OneFOneB,
    ZbH1, ZbV, schedule_named, schedules,
};
pub use shape::{MAX_ACTIONS, Shape};
pub use simulate::simulate;
pub use svg::{Panel, render_svg};
pub use timeline::{Span, Timeline};
pub use trace::render_trace;
