//! The errors with which a plan, program or cost model is refused. Every message says what to do,
//! and a fault inside a plan is shown in its grid.

use crate::words::action::Action;
use crate::words::ids::{Rank, Stage};
use crate::words::shape::{MAX_ACTIONS, Shape};
use crate::words::text::ParseActionError;

/// A fault of one cell of a plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The same action stands in the plan twice.
    #[error("{0} stands in the plan twice; remove one")]
    Doubled(Action),
    /// The action is needed and isn't there.
    #[error("{0} is missing; add it")]
    Missing(Action),
    /// An action without the ones it belongs to.
    #[error("{0} has no place in the plan: {1}")]
    Unneeded(Action, &'static str),
    /// Two actions of one micro-batch stand in the wrong order.
    #[error("{late} must come before {early}; swap them")]
    OutOfOrder {
        /// The action that comes too early.
        early: Action,
        /// The action that has to precede it.
        late: Action,
    },
    /// A stage is spread over two ranks.
    #[error("{action} is on rank {rank}, but stage {} is on rank {owner}; a stage lives on one rank", action.stage())]
    WrongRank {
        /// The stray action.
        action: Action,
        /// Where it stands.
        rank: Rank,
        /// Where the stage's other actions stand.
        owner: Rank,
    },
    /// No rank can go on.
    #[error("no rank can go on: {waits}; reorder the marked action")]
    Deadlock {
        /// Says for some of the stuck ranks what they wait for.
        waits: String,
    },
}

/// The reason why a plan or a program is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A count in the shape is zero.
    #[error("the shape has no {what}: give at least one")]
    EmptyShape {
        /// Ranks, stages per rank or micro-batches.
        what: &'static str,
    },
    /// More actions than any plan may have.
    #[error(
        "a plan for {shape} has more than {MAX_ACTIONS} actions: use fewer ranks, stages_per_rank or micro-batches"
    )]
    TooLarge {
        /// The shape asked for.
        shape: Shape,
    },
    /// The schedule can't do this shape.
    #[error("{schedule} cannot plan for {shape}: it takes {supported}")]
    Unsupported {
        /// The schedule's name.
        schedule: String,
        /// The shape asked for.
        shape: Shape,
        /// The shapes it can do.
        supported: String,
    },
    /// No schedule has this name.
    #[error("there is no schedule `{name}`: use one of {known}")]
    UnknownSchedule {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A rank has nothing to do.
    #[error("rank {rank} has no action: give it some, or plan for fewer ranks")]
    IdleRank {
        /// The rank without actions.
        rank: Rank,
    },
    /// One cell is wrong; the grid shows it in brackets.
    #[error("{fault}\n(rank {rank}, cell {position})\n{grid}")]
    Cell {
        /// The fault.
        fault: Fault,
        /// In which row.
        rank: Rank,
        /// In which cell of the row, counted from zero.
        position: usize,
        /// The plan with the cell marked.
        grid: String,
    },
    /// A plan file that isn't one.
    #[error("this is no plan: {problem}")]
    File {
        /// Says what is wrong with it.
        problem: String,
    },
    /// Something in a plan file is no action.
    #[error("rank {rank}, cell {position}: {problem}")]
    Parse {
        /// In which row.
        rank: usize,
        /// In which cell of the row, counted from zero.
        position: usize,
        /// Says what is wrong with the text.
        problem: ParseActionError,
    },
    /// An edge that isn't a skip.
    #[error(
        "a skip goes up by at least two stages and ends at one of the {stages} stages; {from} to {to} doesn't"
    )]
    Edge {
        /// Where it starts.
        from: Stage,
        /// Where it ends.
        to: Stage,
        /// How many stages there are.
        stages: usize,
    },
    /// Plan, edges, retention or costs were made for different numbers of stages or micro-batches.
    #[error(
        "the {what} is made for {found} {unit}, the plan has {expected}: make both from the same plan"
    )]
    Mismatch {
        /// Names what doesn't fit the plan.
        what: &'static str,
        /// Stages or micro-batches.
        unit: &'static str,
        /// How many it has.
        found: usize,
        /// How many the plan has.
        expected: usize,
    },
    /// A retention drops layers that the stage doesn't have, or the same twice.
    #[error(
        "stage {stage} has {layers} layers; dropped segments must be ascending, disjoint and within them, not {dropped:?}"
    )]
    Segments {
        /// The stage.
        stage: Stage,
        /// How many layers it has.
        layers: usize,
        /// The segments asked for.
        dropped: Vec<std::ops::Range<usize>>,
    },
}

/// The reason why a cost model is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// A cost is negative, infinite or not a number.
    #[error("{what} is {value}: a cost is a finite number, zero or more")]
    Invalid {
        /// Which cost.
        what: String,
        /// Its value.
        value: f64,
    },
    /// The costs are given for another number of stages.
    #[error(
        "costs are given for {found} stages, the program has {expected}: give one per stage, or one for all"
    )]
    Stages {
        /// How many are given.
        found: usize,
        /// How many the program has.
        expected: usize,
    },
    /// Nodes are given for another number of ranks.
    #[error("nodes are given for {found} ranks, the program has {expected}: give one for each")]
    Nodes {
        /// How many are given.
        found: usize,
        /// How many the program has.
        expected: usize,
    },
    /// Ranks wait for each other to take messages.
    #[error(
        "with at most {limit} messages waiting from one rank to another, rank {rank} waits for \
         ever: allow more"
    )]
    QueueLimit {
        /// The limit.
        limit: usize,
        /// A rank that waits.
        rank: usize,
    },
    /// The total time isn't a finite number.
    #[error("the costs add up to more than a number can hold: use smaller ones")]
    Overflow,
}
