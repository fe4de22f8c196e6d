//! Pipeline plans as data.
//!
//! A [`Schedule`] writes a [`Plan`]: for each rank, the ordered list of compute actions. A plan is
//! checked when it is made. It is then [lowered](Program::lower), along the model's [`Edges`] and
//! with a [`Retention`], to a [`Program`] with sends, receives and recomputation. Programs are
//! [simulated](simulate) and executed by the same code, whatever schedule wrote the plan.
//!
//! Nothing here knows a device, a tensor or a thread. The rooms, ground floor first; none imports
//! from one after it:
//!
//! | room | holds |
//! |---|---|
//! | `words` | ids, actions and messages, edges, shapes, errors |
//! | `plan` | the plan: what makes it valid, how it is built, written to a file, shown |
//! | `program` | the program: lowering, what is kept, how many bytes that takes |
//! | `schedules` | the trait, its implementations and their registry |
//! | `simulator` | costs, the simulator, timelines |
//! | `render` | timelines as pictures and traces |
//!
//! ```
//! use stovepipe_schedule::{
//!     CostModel, Edges, GPipe, Program, Retention, Schedule, Shape, simulate,
//! };
//!
//! let plan = GPipe::default().plan(Shape::new(4, 8))?;
//! println!("{plan}");
//! let program = Program::lower(&plan, &Edges::chain(4), &Retention::keep_all(&plan))?;
//! let timeline = simulate(&program, &CostModel::uniform(4, 1.0, 1.0))?;
//! assert_eq!(timeline.makespan(), 2.0 * (8.0 + 3.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod plan;
mod program;
mod render;
mod schedules;
mod simulator;
mod words;

pub use plan::Plan;
pub use plan::builder::PlanBuilder;
pub use program::Program;
pub use program::memory::{LayerMemory, StageMemory};
pub use program::retention::{Retention, StageRetention};
pub use render::svg::{Panel, PictureError, render_svg};
pub use render::trace::render_trace;
// Whatever the registry lists: a new schedule needs no line here.
pub use schedules::*;
pub use simulator::cost::CostModel;
pub use simulator::link::{Handling, Link};
pub use simulator::queues::Queues;
pub use simulator::simulate::simulate;
pub use simulator::stage_cost::StageCost;
pub use simulator::timeline::{Span, Timeline};
pub use words::action::Action;
pub use words::compute::{Compute, ComputeKind};
pub use words::edges::Edges;
pub use words::error::{CostError, Fault, PlanError};
pub use words::ids::{MicroBatch, Rank, Stage};
pub use words::message::{Direction, Edge, Message};
pub use words::mode::Mode;
pub use words::shape::{MAX_ACTIONS, Shape};
pub use words::text::ParseActionError;
