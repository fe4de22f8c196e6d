//! The one error of this crate: what was wrong with a request and what to do about it.
//!
//! It deliberately carries no source error and no position in a schedule: everything here is found
//! before anything runs.

use crate::partition::Partition;

/// Why costs, a partition or a request for one was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The cost vector has no entries.
    #[error("there are no costs: give one cost per layer, for at least one layer")]
    NoCosts,

    /// A cost is negative, infinite or not a number.
    #[error("layer {layer} has cost {cost}: every cost must be finite and at least 0")]
    InvalidCost {
        /// Index of the layer, from 0.
        layer: usize,
        /// The cost that was given.
        cost: f64,
    },

    /// Every cost is finite, but their sum is not.
    #[error("the costs add up to infinity: give them in a larger unit")]
    InfiniteTotal,

    /// Zero parts were asked for, or a partition was given without sizes.
    #[error("a partition needs at least 1 part: ask for 1 or more")]
    NoParts,

    /// More parts were asked for than there are layers to fill them.
    #[error(
        "{parts} parts need at least {parts} layers, the model has {layers}: \
         use at most {layers} stages"
    )]
    TooManyParts {
        /// The number of parts asked for.
        parts: usize,
        /// The number of layers there are.
        layers: usize,
    },

    /// A given part has size 0.
    #[error("part {part} has no layers: every part needs at least 1, so drop it or move a cut")]
    EmptyPart {
        /// Index of the part, from 0.
        part: usize,
    },

    /// The given sizes add up to more layers than can be counted.
    #[error("the sizes add up to more than {} layers: check them for a typing error", usize::MAX)]
    SizeOverflow,

    /// A partition is for another number of layers than the model or the costs have.
    #[error(
        "the partition {partition} covers {} layers, but there are {layers}: \
         make its sizes add up to {layers}",
        .partition.layers()
    )]
    LayersMismatch {
        /// The partition that does not fit.
        partition: Partition,
        /// The number of layers there are.
        layers: usize,
    },

    /// A partition has another number of parts than were asked for.
    #[error(
        "the partition {partition} has {} parts, but {parts} were asked for: \
         give {parts} sizes or ask for {} parts",
        .partition.parts(),
        .partition.parts()
    )]
    PartsMismatch {
        /// The partition that does not fit.
        partition: Partition,
        /// The number of parts asked for.
        parts: usize,
    },

    /// No partitioner has this name.
    #[error("there is no partitioner `{name}`: use one of {known}")]
    UnknownPartitioner {
        /// The name asked for.
        name: String,
        /// The names there are, with the forms of their arguments.
        known: String,
    },

    /// A partitioner can't be made from this argument, or without one.
    #[error("`{found}` can't be used: write it like `{example}`")]
    Argument {
        /// The name, and the argument if there is one.
        found: String,
        /// One that can be used, with the name.
        example: &'static str,
    },

    /// A text does not read as a partition.
    #[error(
        "'{text}' is not a partition, because of '{token}': \
         write the number of layers of each part, as in 4,2"
    )]
    Parse {
        /// The whole text.
        text: String,
        /// The piece of it that is not a whole number.
        token: String,
    },

    /// A constraint doesn't go with the layers or ranks, or isn't a number.
    #[error("{what}: {reason}")]
    Constraint {
        /// The constraint.
        what: &'static str,
        /// The fault.
        reason: String,
    },

    /// Pins and groups leave no partition.
    #[error(
        "no partition has its pinned layers where they are pinned and its groups together: \
         drop a pin or a group, or ask for fewer parts"
    )]
    NoPartition,

    /// The layers need more memory than there is.
    #[error(
        "the layers don't fit: cut into {partition}, which comes closest, {}; \
         use more ranks or more memory, keep fewer micro-batches, or recompute activations",
        missing(.needed, .memory)
    )]
    DoesNotFit {
        /// The cut that lacks least.
        partition: Partition,
        /// The bytes that each rank needs for it.
        needed: Vec<u64>,
        /// The bytes that each rank has.
        memory: Vec<u64>,
    },

    /// No cut that fits was found. There may be one.
    #[error(
        "no cut was found that fits, though there may be one: of those looked at {partition} comes \
         closest, {}; use more ranks or more memory, keep fewer micro-batches, recompute \
         activations, or give a cut of your own",
        missing(.needed, .memory)
    )]
    NotFound {
        /// The cut that lacks least.
        partition: Partition,
        /// The bytes that each rank needs for it.
        needed: Vec<u64>,
        /// The bytes that each rank has.
        memory: Vec<u64>,
    },

    /// A partitioner from outside this crate has its own reason to refuse.
    #[error("{partitioner}: {reason}")]
    Other {
        /// Name of the partitioner.
        partitioner: String,
        /// The fault, and what to do about it.
        reason: String,
    },
}

/// Says where how many bytes are missing.
fn missing(needed: &[u64], memory: &[u64]) -> String {
    let missing: Vec<String> = needed
        .iter()
        .zip(memory)
        .enumerate()
        .filter(|(_, (needed, has))| needed > has)
        .map(|(rank, (needed, has))| {
            format!("rank {rank} needs {needed} bytes and lacks {}", needed - has)
        })
        .collect();
    missing.join(", ")
}
